"""The contract of stores, one protocol per concept; `rayjobs.store.base.Store` composes them."""
