"""Real Ray under a nemesis for half an hour: whatever is killed, the invariants hold."""
