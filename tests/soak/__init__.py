"""Real Ray under a nemesis: whatever is killed, the invariants hold."""
