"""Ground words that every other package may use; imports nothing of `rayjobs`."""
