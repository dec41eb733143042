"""Exports of services that keep traces."""
