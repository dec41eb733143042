"""GRPO: which runs are compared, what each taught (advantages), and the step that trains on them, or on single runs by
what a teacher says of their tokens (`distill`)."""
