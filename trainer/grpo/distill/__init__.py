"""On-policy distillation: what a better model, the teacher, says of the tokens that the policy sampled."""
