"""`arttrace autorl`: from a description of a task, in words, to a trained and tested model."""
