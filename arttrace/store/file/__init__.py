"""The DuckDB file: opened, locked, migrated, pruned, and shared by the threads of the process that owns it."""
