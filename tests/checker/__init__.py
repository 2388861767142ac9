"""One checker for what must always hold, whatever was killed: invariants I1 to I11."""
