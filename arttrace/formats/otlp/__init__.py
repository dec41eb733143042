"""OTLP trace requests in both encodings: checked, decoded to span rows, and encoded again. Pure."""
