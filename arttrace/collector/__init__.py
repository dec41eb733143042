"""A server: OTLP in, journal, store; and the query API for other processes."""
