"""The HTTP API: its operations, and a workspace behind a server."""
