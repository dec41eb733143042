"""Files of other systems, read piece by piece whatever their compression."""
