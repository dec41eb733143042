"""`arttrace train`: its options, and what it does by each method, on order, and as a daemon."""

from trainer.commands.train.cli import command

__all__ = ["command"]
