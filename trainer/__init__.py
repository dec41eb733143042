"""trainer: what needs a model: learning, serving, and the loop between them."""
