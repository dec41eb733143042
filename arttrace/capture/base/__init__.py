"""What every room of capture builds on: settings, guards, ids, bounded values. Imports no other room of capture."""
