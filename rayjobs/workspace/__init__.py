"""A workspace: its folder and the files it stores."""
