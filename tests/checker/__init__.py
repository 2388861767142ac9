"""One checker for the invariants I1 to I11, which must always hold, whatever was killed."""
