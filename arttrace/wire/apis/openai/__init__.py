"""OpenAI's APIs, and those like it: chat completions, responses, legacy completions, embeddings."""
