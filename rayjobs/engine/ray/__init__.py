"""The engine's view of a Ray cluster. Imported in Ray processes only."""
