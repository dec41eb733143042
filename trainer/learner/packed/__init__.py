"""The packed engine: every distinct token of a batch goes through the model once."""
