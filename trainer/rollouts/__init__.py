"""An entry point run again: in processes of its own, on recorded inputs, under the policy in training."""
