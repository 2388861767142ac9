"""The client's side of a compute target: reach it, start it, bring it back, stop it. No Ray."""
