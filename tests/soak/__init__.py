"""Faults on real Ray: the invariants hold, whatever is killed."""
