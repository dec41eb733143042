"""What this process recorded: in which directory each run is, and the scores that are stored with it."""
