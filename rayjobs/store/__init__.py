"""The store: the only part of rayjobs that knows SQL."""
