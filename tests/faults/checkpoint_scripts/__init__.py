"""Programs that the store's fault tests run as separate processes and kill."""
