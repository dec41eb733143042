"""The hooks of clients made for models, one module per client or per kind of client."""
