"""Pure: a generation request as the client sent it, and as the engine gets it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire import Api
from arttrace.wire.sampling_fields import NEUTRAL, as_the_policy, without_strict
from trainer.gateway.errors import Refusal
from trainer.gateway.policies import Version

_RawObject = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NEUTRAL = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in NEUTRAL.items()}
_TRUE, _ZERO, _ABSENT = msgspec.Raw(b"true"), msgspec.Raw(b"0"), (b"null", b"false")
_LOGPROBS = "message.output_text.logprobs"
MAX_ANSWERS = 1024
"""Of one request: prompts times answers to each."""

_BOUNDS = {"n": (1, 128), "best_of": (1, 128), "top_k": (-1, 2**31 - 1)}
"""What requests may ask for at most; `n` as in OpenAI's own API. vLLM takes 16384, each a request of its own."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a request's JSON says: the model it names, and every field as it came."""

    api: Api
    model: str
    fields: dict[str, msgspec.Raw]

    def for_engine(self, version: Version, *, as_the_policy_samples: bool = False) -> bytes:
        """The JSON for the engine: the version's model, token ids and log-probabilities asked for, no tool strict,
        everything else byte for byte as it came, or without what would change the policy's own sampling. What is not
        said of the sampling is said: an engine that is not ours takes it from its model's directory."""
        fields = {name: value for name, value in self.fields.items() if name != "art"}  # it names the run, for us
        if (tools := fields.get("tools")) is not None:
            fields["tools"] = without_strict(tools)
        patched = {
            **(as_the_policy(fields) if as_the_policy_samples else fields),
            "model": msgspec.Raw(msgspec.json.encode(version.engine_model)),
        }
        patched |= {name: raw for name, raw in _NEUTRAL.items() if bytes(patched.get(name, b"null")) == b"null"}
        if self.api == "responses":
            if self.fields.get("background", _ZERO) != _TRUE:
                patched["enable_response_messages"] = _TRUE  # vLLM's way of giving token ids here
            patched["include"] = _with_logprobs(self.fields.get("include"))
            return msgspec.json.encode(patched)
        patched["return_token_ids"] = _TRUE
        asked = self.fields.get("logprobs")
        if asked is None or bytes(asked) in _ABSENT:
            # Chat completions take a flag, completions the number of alternatives beside the sampled token.
            patched["logprobs"] = _TRUE if self.api == "chat_completions" else _ZERO
        return msgspec.json.encode(patched)


def read_request(body: bytes, api: Api) -> GenerationRequest:
    """The request in a body. Raises Refusal (400): no JSON object, no model, or a field that kills the engine."""
    try:
        fields = _RawObject.decode(body)
        model = msgspec.json.decode(fields["model"], type=str)
    except KeyError:
        raise Refusal(400, "invalid_request_error", "the request names no model") from None
    except UNREADABLE as error:
        raise Refusal(
            400, "invalid_request_error", f"the request is no JSON object with a model name: {error}"
        ) from None
    for field in ("prompt_logprobs", "echo"):
        if bytes(fields.get(field, b"null")) not in _ABSENT:
            # vLLM 0.32 dies of it, with every request under way, when an adapter is in use at the same time.
            raise Refusal(400, "invalid_request_error", f"{field} is not served here")
    _require_bounded(fields)
    return GenerationRequest(api, model, fields)


def _require_bounded(fields: dict[str, msgspec.Raw]) -> None:
    """Raises Refusal (400) for a number that an engine would take, and be busy with for everybody else."""
    asked: dict[str, int] = {}
    for field, (least, most) in _BOUNDS.items():
        said = bytes(fields.get(field, b"null"))
        if said == b"null":
            continue
        try:
            value = asked[field] = msgspec.json.decode(said, type=int)
        except UNREADABLE:
            raise _out_of_bounds(field, said, f"is no integer of {least} to {most}") from None
        if not least <= value <= most:
            raise _out_of_bounds(field, said, f"is not within {least} to {most}")
    prompts = _prompts(fields.get("prompt"))
    wanted = max(asked.get("n", 1), asked.get("best_of", 1))
    if prompts * wanted > MAX_ANSWERS:
        raise Refusal(
            400, "invalid_request_error", f"{prompts} prompts with {wanted} answers each are over {MAX_ANSWERS} answers"
        )


def _prompts(prompt: msgspec.Raw | None) -> int:
    """How many prompts a completion asks for: a text or a list of token ids is one, a list of them many."""
    if prompt is None or not bytes(prompt).startswith(b"["):
        return 1
    try:
        entries = msgspec.json.decode(prompt, type=list[msgspec.Raw])
    except UNREADABLE:
        return 1
    return len(entries) if entries and bytes(entries[0])[:1] in (b'"', b"[") else 1


def _out_of_bounds(field: str, said: bytes, what: str) -> Refusal:
    shown = said[:40].decode("utf-8", "replace") + ("..." if len(said) > 40 else "")
    return Refusal(400, "invalid_request_error", f"{field} {what}: {shown}")


def _with_logprobs(include: msgspec.Raw | None) -> msgspec.Raw:
    try:
        asked = [] if include is None else msgspec.json.decode(include, type=list[str] | None) or []
    except UNREADABLE:
        return include or msgspec.Raw(b"null")  # the engine says best what is wrong with it
    return msgspec.Raw(msgspec.json.encode(asked if _LOGPROBS in asked else [*asked, _LOGPROBS]))
