"""Options, units, progress: what several commands use."""
