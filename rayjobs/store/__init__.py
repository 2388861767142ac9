"""The store: all SQL on the records of a workspace, except two checks that only read.

`base` is the contract, in protocols by concept. `jobs`, `attempts`, `arrays` and the like implement
it; `transitions` has one statement for each change of a job's state; `migrations` upgrades an older
schema.
"""
