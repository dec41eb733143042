"""Calls of agents in any language, recorded as they pass: whose they are, and how their runs end."""
