"""Imitation of trajectories (SFT), as ART's `train_sft` and the functions around it have it."""
