"""Call: one model call, decoded from its `chat` span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from arttrace.records.message import Message
from arttrace.records.values.finish_reasons import finish_reason


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One answer of a call; `finish_reason` is as it came, `end` the same in the words of chat completions.

    `token_ids` has shape (T,), the sampled tokens; `logprobs` has shape (T,), natural logarithms under the policy that
    sampled them, None where the engine gave none. Either is None as a whole when the engine did not give it.
    `prompt_token_ids` is this choice's prompt where that is not the call's (legacy completions of several prompts).
    """

    index: int
    message: Message
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None

    @property
    def end(self) -> str | None:
        """Why the answer ended, in the words of chat completions where they have one for it."""
        return finish_reason(self.finish_reason)


class Call(msgspec.Struct, frozen=True, gc=False):
    """One model call: what went in, what came out, and the token truth where the engine gave it.

    `prompt_token_ids` has shape (P,); calls that extend each other share its memory (records.tokens.TokenIds). Times
    are nanoseconds since the epoch. `tools` are definitions in OpenAI's form.
    `interrupted` says why an answer is not whole ("closed", "cancelled", "error", "background"). `truncated` means that
    content was cut to a bound, or dropped by its sender, `masked` that it was redacted or masked; GRPO trains on
    neither. `altered_sampling` names the request's settings beside the temperature under which tokens are sampled from
    another distribution than the policy's own (top_p, ...). `processed_logprobs`: the log-probabilities are those of
    the distribution that was sampled from, temperature included, not of temperature 1. `previous_response_id` is the
    response whose history this call continued; if that was captured, it is part of `messages`. `compacted`: the sender
    says that the history was compacted. `prompt_form` is "begun" where the last message is the beginning of the answer,
    "several" where `messages` are so many prompts, with answers of their own. `collided`: other spans have the same id.
    `unreadable`: names of attributes that were cut, or of which nothing could be read, so that a prompt, an answer or
    tools are missing, what the sender dropped, and what of the prompt only the server has. A call in progress ends at
    0.
    """

    span_id: str
    trace_id: str
    parent_span_id: str | None
    start_ns: int
    end_ns: int
    request_model: str = ""
    response_model: str = ""
    policy_version: str | None = None
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    choices: tuple[Choice, ...] = ()
    prompt_token_ids: Sequence[int] | None = None
    temperature: float | None = None
    altered_sampling: tuple[str, ...] = ()
    processed_logprobs: bool = False
    response_id: str | None = None
    previous_response_id: str | None = None
    compacted: bool = False
    prompt_form: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    interrupted: str | None = None
    truncated: bool = False
    masked: bool = False
    collided: bool = False
    unreadable: tuple[str, ...] = ()
    execution_id: str | None = None
    execution_parent_id: str | None = None
