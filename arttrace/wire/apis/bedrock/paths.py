"""What the path of a request to Bedrock's runtime says: which operation, of which model, and whether it streams.

The model is an id, an inference profile or an ARN, whose colons and slashes are escaped in the path as it is sent.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_CALL = re.compile(r"/model/(.+)/(converse|converse-stream|invoke|invoke-with-response-stream)\Z")

_EMBEDS = re.compile(r"amazon\.[\w.-]*embed|cohere\.embed")
"""In the names of the models that give embeddings: Titan's, Nova's and Cohere's."""


def is_call(path: str) -> bool:
    """Whether a POST to it asks a model."""
    return _CALL.search(path) is not None


def is_converse(path: str) -> bool:
    """Whether a POST to it is in Converse's form."""
    found = _CALL.search(path)
    return found is not None and found[2].startswith("converse")


def is_anthropics(path: str) -> bool:
    """Whether a POST to it is in the form of Anthropic's messages, by the name of the model."""
    found = _CALL.search(path)
    return found is not None and found[2].startswith("invoke") and "anthropic" in found[1]


def is_embedding(path: str) -> bool:
    """Whether a POST to it asks for embeddings, by the name of the model."""
    found = _CALL.search(path)
    return found is not None and found[2] == "invoke" and _EMBEDS.search(found[1]) is not None


def streams(path: str) -> bool:
    """Whether the answer comes in events."""
    return path.endswith(("/converse-stream", "/invoke-with-response-stream"))


def model_in(path: str) -> str | None:
    """The model as the caller named it."""
    found = _CALL.search(path)
    return None if found is None else unquote(found[1])
