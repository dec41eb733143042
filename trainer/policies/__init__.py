"""The versions of a policy on disk: written whole, listed, exported, and pruned."""
