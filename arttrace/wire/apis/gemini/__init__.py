"""Google's Gemini API, at Vertex AI too: contents, answers, embeddings."""
