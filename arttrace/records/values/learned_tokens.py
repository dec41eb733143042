"""What a step computed for each token that it trained: a compact file beside the version that it made.

After a magic line and the length of the header come the header, in JSON, and for each of its sequences four arrays,
one entry per token: the place in the sequence (uint32), the log-probability under the learner and the importance
ratio (float16), and flags (uint8); a fifth, the advantage (float32), where the header has none for the whole sequence.
All numbers are little-endian. A step without room for all its tokens in
`MOST_BYTES` keeps the first sequences, and the number of tokens that it left out.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from arttrace.records.sequence import TokenSequence

LEARNED_TOKENS = "learned_tokens.bin"
"""The file's name in the directory of a version."""
CLIPPED, LEFT_OUT, MASKED, FAR = 1, 2, 4, 8
"""Flags: the ratio was clipped; the token had no weight in the loss, since the engine's log-probability was too far
from the learner's; the importance mask removed its weight; it was too far but kept its weight (in files of
earlier versions)."""
MOST_BYTES = 16 << 20
_MAGIC = b"arttrace-learned-tokens-1\n"
_LENGTH = struct.Struct("<I")
_PER_TOKEN, _PER_ADVANTAGE, _PER_ROW = 9, 4, 64


@dataclass(frozen=True, slots=True)
class LearnedSequence:
    """The trained tokens of one sequence: `places` in it, and of each the advantage, the learner's log-probability, the
    importance ratio and the flags."""

    key: str
    advantages: tuple[float, ...]
    places: tuple[int, ...]
    logprobs: tuple[float, ...]
    ratios: tuple[float, ...]
    flags: tuple[int, ...]


class LearnedTokens(NamedTuple):
    """The sequences found in a file, by key, and the number of the step's tokens for which the file had no room."""

    sequences: dict[str, LearnedSequence]
    without_room: int


class Columns(NamedTuple):
    """One sequence as bytes: key, the advantage of all its tokens or None, and the arrays as in the file, the last
    empty where all tokens have one advantage."""

    key: str
    advantage: float | None
    places: bytes
    logprobs: bytes
    ratios: bytes
    flags: bytes
    advantages: bytes = b""


def sequence_key(sequence: TokenSequence) -> str:
    """A key that identifies the sequence, whichever of its tokens are trained."""
    digest = hashlib.blake2b(digest_size=12)
    for text in (sequence.trajectory_id, sequence.agent_id, *sequence.call_ids):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(little_endian(array("q", sequence.token_ids)))
    return digest.hexdigest()


def little_endian(values: array[int] | array[float]) -> bytes:
    """The bytes of the numbers, in the file's byte order."""
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def encode_learned(sequences: Iterable[Columns]) -> bytes:
    """The whole file."""
    rows: list[tuple[str, float | None, int]] = []
    body: list[bytes] = []
    size = left_out = 0
    for one in sequences:
        tokens = len(one.flags)
        needed = tokens * _PER_TOKEN + len(one.advantages) + _PER_ROW
        if size + needed > MOST_BYTES:
            left_out += tokens
            continue
        size += needed
        rows.append((one.key, one.advantage, tokens))
        body += one[2:]
    header = json.dumps({"sequences": rows, "left_out_tokens": left_out}).encode()
    return b"".join((_MAGIC, _LENGTH.pack(len(header)), header, *body))


def decode_learned(file: BinaryIO, keys: Collection[str]) -> LearnedTokens:
    """The sequences with these keys that the file has. Raises ValueError if the file is damaged."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("no file of learned tokens")
    found: dict[str, LearnedSequence] = {}
    try:
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > MOST_BYTES:
            raise ValueError("a header of unlikely length")
        header = json.loads(file.read(length))
        without_room = int(header["left_out_tokens"])
        for key, advantage, n in header["sequences"]:
            of_tokens = advantage is None
            size = n * (_PER_TOKEN + (_PER_ADVANTAGE if of_tokens else 0))
            if not 0 <= size <= MOST_BYTES:
                raise ValueError("a sequence of unlikely length")
            if key not in keys:
                file.seek(size, 1)
                continue
            numbers = struct.unpack(f"<{n}I{n}e{n}e{n}B" + (f"{n}f" if of_tokens else ""), file.read(size))
            found[key] = LearnedSequence(
                key,
                numbers[4 * n :] if of_tokens else (float(advantage),) * n,
                numbers[:n],
                numbers[n : 2 * n],
                numbers[2 * n : 3 * n],
                numbers[3 * n : 4 * n],
            )
    except (struct.error, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"damaged: {error}") from error
    return LearnedTokens(found, without_room)
