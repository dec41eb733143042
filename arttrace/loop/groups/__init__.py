"""Groups of runs in other ways than by one gather: batch by batch, and as they are awaited."""
