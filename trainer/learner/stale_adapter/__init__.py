"""Which version's log-probabilities are these? An engine with a stale adapter is found by the version it is nearest to.

A bound on the difference alone cannot show it: in bfloat16 engine and learner differ by more than two neighbouring
versions do. So it is measured how far another version is from the current one at each token, and how much of that way
what was captured has gone: nothing of it, if the current version sampled, all of it, if the other did.
"""
