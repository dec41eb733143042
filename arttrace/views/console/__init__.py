"""What the terminal shows beside lists and trees: comparisons, events, tokens."""
