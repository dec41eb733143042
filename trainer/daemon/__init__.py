"""The daemon: a state machine that trains one policy, step after step, from the groups that arrive."""
