"""The routes that generate: what a request asks for, and its way to an engine and back."""
