"""Typed plain data that passes between the rooms, without behaviour beyond its own encoding; the attribute names on the
wire."""
