"""The node agent: all work on one node for the attempts there.

`agent` takes the calls of the target. `prepare` makes an attempt's folder, `node` launches it,
`collect` brings its results into the store, `outputs` its outputs into datastores, `ends` fences it
off and ends what is left of it, `stopped_hosts` acts for a host that does not answer.
"""
