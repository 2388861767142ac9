"""The HTTP server of a workspace."""
