"""The client's side of a compute target: reach, start, revive and stop it. No Ray.

`starting` starts or wakes a target, `revive` restarts a dead one, and `stopping` stops it. `keeper`
is the process next to a local head that does the work.
"""
