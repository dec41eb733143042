"""What is read of whole traces: what an SDK recorded of one call in several spans and log records. Pure."""
