"""The text of token ids, as a model's tokenizer.json has it beside its weights: the vocabulary alone is read, nothing
is tokenised."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.paths import DataDir

_MAX_BYTES = 128 << 20
_byte = re.compile(r"<0x([0-9A-Fa-f]{2})>").fullmatch

Pieces = Mapping[int, bytes]


def pieces_of(model: str) -> Pieces:
    """The pieces of the model in a directory, by id; none where it is no directory of this machine, or its tokenizer
    cannot be read."""
    path = Path(model) / "tokenizer.json"
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns) if model and stat.st_size <= _MAX_BYTES else {}
    except (OSError, *UNREADABLE, TypeError, KeyError):
        return {}


class _Serving(msgspec.Struct):
    base_model: str = ""


def pieces_of_run(versions: Iterable[str], base_models: Iterable[tuple[str, str]], data: DataDir) -> Pieces:
    """The pieces of the model that answered as one of `versions`, where its directory lies on this machine, else of the
    one that is served; none where neither does. `base_models` are policies with what they adapt."""
    names = {version.rpartition("@")[0] for version in versions}
    for model in (*(model for policy, model in base_models if policy in names), _served(data)):
        if found := pieces_of(model):
            return found
    return {}


def _served(data: DataDir) -> str:
    try:
        return msgspec.json.decode(data.serving.read_bytes(), type=_Serving).base_model
    except (OSError, *UNREADABLE):
        return ""


@functools.lru_cache(maxsize=4)
def _read(path: Path, _changed_ns: int) -> Pieces:
    whole = msgspec.json.decode(path.read_bytes())
    vocabulary = whole["model"]["vocab"]
    if isinstance(vocabulary, list):  # of a unigram model: pairs of piece and score, in order of id
        named = {id: pair[0] for id, pair in enumerate(vocabulary)}
    else:
        named = {id: piece for piece, id in vocabulary.items()}
    of_bytes = "ByteLevel" in str(whole.get("decoder")) + str(whole.get("pre_tokenizer"))
    found = {id: _bytes(piece, of_bytes) for id, piece in named.items()}
    found.update((one["id"], one["content"].encode()) for one in whole.get("added_tokens") or ())
    return found


def _bytes(piece: Any, of_bytes: bool) -> bytes:
    text = str(piece)
    if of_bytes:
        try:
            return bytes(map(_byte_of().__getitem__, text))
        except KeyError:
            return text.encode()
    if (found := _byte(text)) is not None:
        return bytes([int(found[1], 16)])
    return text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


@functools.cache
def _byte_of() -> dict[str, int]:
    """The letter by which byte-level BPE writes each byte: itself where it is printable, else one from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}
