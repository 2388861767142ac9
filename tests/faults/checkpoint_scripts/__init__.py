"""Programs that the store's fault tests run as processes of their own, and kill."""
