"""Typed plain data that passes between the parts: the bottom layer, without behaviour beyond its own encoding."""
