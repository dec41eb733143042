"""One folder per provider whose API is read: its requests and responses as the attributes of a span."""
