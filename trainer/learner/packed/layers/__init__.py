"""Parts of a model's layers in fewer passes over memory than transformers and PEFT take, with their numbers."""
