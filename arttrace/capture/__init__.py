"""In the user's process: what is recorded, and who did it."""
