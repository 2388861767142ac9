"""The node agent: all work on one node for the attempts there.

`agent` receives the calls of the target and `service` answers them. `prepare` creates an attempt's
folder, `node` launches it, `collect` stores its results, `outputs` stores its outputs in
datastores, `ends` fences it off and ends its remaining processes, and `stopped_hosts` acts for a
host that does not answer.
"""
