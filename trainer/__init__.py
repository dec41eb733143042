"""trainer: what needs a model: learning, serving, and the loop between them."""

import os

# Read when huggingface_hub is first imported, by transformers for one. TRL would tell the hub of each training.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
