"""Agents that mend programs, and write a file for each run."""
