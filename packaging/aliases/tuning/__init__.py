"""The old top-level name of `rayjobs.tuning`: the same modules, loaded once."""

from rayjobs.core.aliases import alias

alias(__name__)
