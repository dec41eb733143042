"""The demo's tiny base model: its tokenizer, the demonstrations, and its training."""
