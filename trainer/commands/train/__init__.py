"""`arttrace train`: its options, its methods, and how it runs once, on order, and as a daemon."""

from trainer.commands.train.cli import command

__all__ = ["command"]
