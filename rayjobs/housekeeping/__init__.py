"""What keeps a workspace and a machine tidy."""
