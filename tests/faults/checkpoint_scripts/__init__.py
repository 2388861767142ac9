"""Programs that the checkpoint fault tests run as separate processes and kill."""
