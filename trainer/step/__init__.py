"""The phases of a training step, whatever its method: their clock, retries, publishing, reporting."""
