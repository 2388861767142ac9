"""All code that runs inside a job: standard library only, so that it works in any environment.

`host` is the attempt host: `ranks` forks its ranks, `watch` watches them, `ending` and `tree` end
them, `exit_record` writes how they ended. `rank` runs the script; `run` is the `Run` that it logs
to. `warm_loop` is the warm interpreter that forks hosts.
"""
