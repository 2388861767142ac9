"""The store: the only part of rayjobs that knows SQL.

`base` is the contract, in protocols by concept. `jobs`, `attempts`, `arrays` and the like implement
it; `transitions` has one statement for each change of a job's state; `migrations` the schema.
"""
