"""What model calls cost: prices by model, and the tokens that were used, out of the store."""
