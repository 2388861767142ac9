"""The target actor: it decides, starts attempts, and follows them to their ends.

`engine` has the turn of the queue, `attempt` what happens to one attempt (start, end, records),
`allocations` the reserved nodes, `recovery` what a new actor takes over, `tidying` what is removed,
`ray` all calls to Ray. `actor` answers clients.
"""
