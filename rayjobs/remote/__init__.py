"""The HTTP API: its operations, and workspaces behind a server."""
