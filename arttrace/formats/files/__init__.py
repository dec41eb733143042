"""Files of other systems, read piece by piece whatever they are packed with."""
