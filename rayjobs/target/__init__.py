"""The client's side of a compute target: reach, start, revive and stop it. No Ray."""
