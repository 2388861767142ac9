"""A workspace: its folder, and the bytes it stores."""
