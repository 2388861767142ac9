"""Whole job lifecycles in virtual time: the real engine and store, with faults at every step."""
