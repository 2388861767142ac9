"""The client's side of a compute target: reach, start, revive and stop it. No Ray.

`starting` starts and wakes one, `revive` brings a dead one back, `stopping` stops it; `keeper` is
the process beside a local head that does the work.
"""
