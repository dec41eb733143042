"""Who made the calls: recorded agents, sub-agents that only the calls reveal, and their tool calls."""
