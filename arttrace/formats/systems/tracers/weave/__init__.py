"""Calls exported from W&B Weave."""
