"""The commands that need a model; the `arttrace` command finds them by entry point."""
