"""Spans of other SDKs under the names of the GenAI conventions, one file per SDK. Pure."""
