"""Records of what happened to jobs, and the consequences.

`states` has the states, `outcomes` what each outcome leads to, `rootcause` what ended an attempt,
`retry` whether another attempt follows.
"""
