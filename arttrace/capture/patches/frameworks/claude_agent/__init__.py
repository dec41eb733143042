"""Hooks of the Claude Agent SDK."""
