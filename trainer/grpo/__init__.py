"""GRPO: which runs are compared, what each taught (advantages), and the step that trains on them."""
