"""Pure: a generation request as the client sent it, and as the engine gets it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from arttrace.records.unreadable import UNREADABLE
from arttrace.wire import Api
from trainer.gateway.errors import Refusal
from trainer.gateway.policies import Version

_RawObject = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TRUE, _ZERO, _ABSENT = msgspec.Raw(b"true"), msgspec.Raw(b"0"), (b"null", b"false")
_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a request's JSON says: the model it names, and every field as it came."""

    api: Api
    model: str
    fields: dict[str, msgspec.Raw]

    def for_engine(self, version: Version) -> bytes:
        """The JSON for the engine: the version's model, token ids and log-probabilities asked for, everything else
        byte for byte as it came."""
        patched = {**self.fields, "model": msgspec.Raw(msgspec.json.encode(version.engine_model))}
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
    return GenerationRequest(api, model, fields)


def _with_logprobs(include: msgspec.Raw | None) -> msgspec.Raw:
    try:
        asked = [] if include is None else msgspec.json.decode(include, type=list[str] | None) or []
    except UNREADABLE:
        return include or msgspec.Raw(b"null")  # the engine says best what is wrong with it
    return msgspec.Raw(msgspec.json.encode(asked if _LOGPROBS in asked else [*asked, _LOGPROBS]))
