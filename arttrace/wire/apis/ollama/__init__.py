"""Ollama's own API: chats, prompts, embeddings."""
