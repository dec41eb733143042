"""What the views of the store are made of: their definitions, and the rows under them."""
