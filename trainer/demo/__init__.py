"""`arttrace demo`: the whole loop on a machine with no GPU, on a tiny model built on the spot."""
