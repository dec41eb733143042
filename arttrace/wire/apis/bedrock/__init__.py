"""Amazon Bedrock's runtime: Converse, and what other APIs' bodies are sent in (InvokeModel)."""
