"""Basic modules that every other package may use; they import nothing else of `rayjobs`."""
