"""The HTTP API of the process that owns a store."""
