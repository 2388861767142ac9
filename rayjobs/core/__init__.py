"""Basic modules that every other package may use; of `rayjobs`, they import only `injob`."""
