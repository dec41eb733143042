"""Which content of a call or a run may be written: modes, the user's mask, secrets. Every recorder uses these rules."""

from arttrace.wire.content.hidden import Hidden
from arttrace.wire.content.modes import MAX_CONTENT_BYTES, ContentMode, Mask, mode_of, stricter
from arttrace.wire.content.rules import ContentRules, MaskFailed

__all__ = ["MAX_CONTENT_BYTES", "ContentMode", "ContentRules", "Hidden", "Mask", "MaskFailed", "mode_of", "stricter"]
