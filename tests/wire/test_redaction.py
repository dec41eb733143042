"""The mode "redacted": what is the same to a model stays the same."""

from __future__ import annotations

from arttrace.wire.content.redaction import redacted


def test_a_tool_call_without_arguments_is_redacted_alike_in_an_answer_and_in_the_next_prompt() -> None:
    """Streams that bring none say nothing, and clients send an empty object."""
    said, sent = (
        redacted([{"role": "assistant", "parts": [{"type": "tool_call", "name": "now", "arguments": given}]}], kind)
        for kind, given in (("output_messages", ""), ("input_messages", "{}"))
    )
    assert said == sent
