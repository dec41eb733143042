"""`arttrace autorl`: from the description of a task to a trained and tested model."""
