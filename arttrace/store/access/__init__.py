"""How programs reach a store: in this process, or over HTTP when another process owns the file."""
