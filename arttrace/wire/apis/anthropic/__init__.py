"""Anthropic's Messages API, at Bedrock and Vertex AI too."""
