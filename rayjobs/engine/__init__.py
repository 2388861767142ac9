"""The target actor: it decides, starts attempts, and follows them to their ends.

`engine` runs the loop of the queue, `attempt` supervises one attempt (start, end, records),
`allocations` manages the reserved nodes, `recovery` takes over the work of an earlier actor,
`tidying` removes leftovers, `ray` makes the queue's calls to Ray, `starter` starts Ray and
the actor, and `actor` answers clients.
"""
