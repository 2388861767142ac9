"""All code that runs inside a job: standard library only, so that it works in any environment."""
