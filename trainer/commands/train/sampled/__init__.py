"""`arttrace train` on what the policy itself sampled: by GRPO, or as a teacher rates it."""
