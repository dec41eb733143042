"""The OpenAI-compatible front of the serving engine: policy aliases, version stamps, publishing, pass-through."""
