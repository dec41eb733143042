"""One module per API of a model server: its requests and responses as the attributes of a span."""
