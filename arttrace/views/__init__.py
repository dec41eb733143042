"""What a person looks at: the terminal now; the viewer and Langfuse beside it."""
