"""The old top-level name of `rayjobs.datastore`: the same modules, loaded once."""

from rayjobs.core.aliases import alias

alias(__name__)
