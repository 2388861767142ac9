"""One file a step; its number is the schema version that it leads to."""
