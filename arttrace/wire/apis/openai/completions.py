"""One exchange of the legacy completions API becomes the attributes of its `text_completion` span.

Each prompt is one user message, a prompt of token ids a part that holds them. With several prompts the choices count
through: prompt p's are p*n to p*n+n-1, and each has its own prompt token ids.
"""

from __future__ import annotations

from typing import Any

from arttrace.records import semconv
from arttrace.records.message import Message, OtherPart, Part, TextPart
from arttrace.wire.apis.openai.chat import put_answer, read_answer
from arttrace.wire.apis.openai.completion_response import Completion, integers
from arttrace.wire.exchange import Exchange
from arttrace.wire.span_attributes import Decoded, SpanDraft


def decode_completion(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange of legacy completions; `wire.decode` says what the options mean."""
    span = SpanDraft(
        exchange, operation=semconv.OPERATION_TEXT_COMPLETION, api="completions", content=content, limit=limit
    )
    request = span.request()
    prompts = prompt_messages(request)
    span.put_messages(semconv.INPUT_MESSAGES, prompts)
    span.put(semconv.PROMPT_FORM, "several" if prompts and len(prompts) > 1 else None)
    completion = read_answer(span, prompts=len(prompts or ()) or 1)
    if not isinstance(completion, Completion):
        return span.decoded(completion)
    _drop_repeated_prompts(completion)
    if request.get("echo") is True:
        _drop_echo(completion)
    return span.decoded(put_answer(span, completion))


def prompt_messages(request: dict[str, Any]) -> tuple[Message, ...] | None:
    """The prompts of a request, each as one user message; None when there are none."""
    prompt = request.get("prompt")
    if prompt is None:
        return None
    several = isinstance(prompt, list) and integers(prompt) in (None, [])
    suffix = request.get("suffix")
    end: tuple[Part, ...] = (OtherPart({"type": "suffix", "suffix": suffix}),) if suffix else ()
    return tuple(Message("user", (_prompt(each), *end)) for each in (prompt if several else [prompt]))


def _prompt(prompt: Any) -> Part:
    if isinstance(prompt, str):
        return TextPart(prompt)
    kind = "token_ids" if isinstance(prompt, list) else "prompt"
    return OtherPart({"type": kind, kind: prompt})


def _drop_repeated_prompts(completion: Completion) -> None:
    """Choices of one prompt share its ids: they are kept once."""
    first: list[int] | None = None
    for choice in completion.choices:
        if choice.index == 0:
            first = choice.prompt_token_ids
        elif choice.prompt_token_ids == first:
            choice.prompt_token_ids = None


def _drop_echo(completion: Completion) -> None:
    """With `echo` the log-probabilities begin with the prompt's; only the ids say how many were sampled."""
    for choice in completion.choices:
        sampled = None if choice.token_ids is None else len(choice.token_ids)
        if choice.logprobs is None or sampled is None or sampled > len(choice.logprobs):
            choice.logprobs = None
        else:
            choice.logprobs = choice.logprobs[len(choice.logprobs) - sampled :]
