"""Which spans are one and the same, and which trajectory each one, and each reward, belongs to. Pure."""
