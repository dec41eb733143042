"""What a loop starts beside its own program, servers and the trainer, and what it tells the trainer."""
