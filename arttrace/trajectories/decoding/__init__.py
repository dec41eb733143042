"""Attributes of one span as typed values, without ever raising; a growing history is read once."""
