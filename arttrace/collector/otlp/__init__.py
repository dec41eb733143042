"""OTLP received: over HTTP and gRPC, checked, durable before the answer."""
