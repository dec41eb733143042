"""What the path of a request to Gemini's API says: what is asked, of which model, at which of Google's services.

The path of a model is `/v1beta/models/M:generateContent`, that of one that the caller has tuned
`/v1beta/tunedModels/M:...`; at Vertex AI `/v1/projects/P/locations/L/publishers/google/models/M:...`, or
`.../endpoints/E:...`.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_CALL = re.compile(r":(?:g|streamG)enerateContent\Z")
# Vertex AI embeds by the general path of a model where the model is older.
_EMBEDDINGS = re.compile(
    r":(?:embedContent|batchEmbedContents)\Z|/publishers/google/models/[^/]*embedding[^/]*:predict\Z"
)
_MODEL = re.compile(r"(?:^|/)(?:models/|(?=(?:tunedModels|endpoints)/))((?:\w+/)?[^/:]+):\w+\Z")


def is_call(path: str) -> bool:
    """Whether a POST to it asks for an answer."""
    return _CALL.search(path) is not None


def is_embedding(path: str) -> bool:
    """Whether a POST to it asks for embeddings."""
    return _EMBEDDINGS.search(path) is not None


def streams(path: str) -> bool:
    """Whether the answer comes in chunks."""
    return path.endswith(":streamGenerateContent")


def model_in(path: str) -> str | None:
    """The model; one that was tuned, or that has an endpoint of its own, with what its name stands under."""
    found = _MODEL.search(path)
    return None if found is None else unquote(found[1])


def provider_at(path: str) -> str:
    """`gen_ai.provider.name` of the service."""
    return "gcp.vertex_ai" if "/projects/" in path or "/publishers/" in path else "gcp.gemini"
