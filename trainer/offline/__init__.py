"""Learning from what other models said: fine-tuning on good runs, and preferences between the runs of a group."""
