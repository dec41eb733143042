"""The operations of AnyStore as they travel between the asking process and the owner of the store.

Arguments and results are taken from the annotations of AnyStore's methods. Over the wire they are MessagePack between
programs; people get JSON. Records enter by `append`, as JSON lines.
"""

from __future__ import annotations

import datetime
import inspect
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, get_type_hints

import msgspec

from arttrace.records.message import Message
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.integers import INT64, UINT64
from arttrace.records.values.tokens import TokenIds, plain
from arttrace.store.access.any_store import OPERATION_NAMES, AnyStore


class Operation(msgspec.Struct, frozen=True):
    """One method: its arguments as a struct type, and its result to and from MessagePack."""

    name: str
    arguments: type[msgspec.Struct]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def run(self, store: AnyStore, arguments: msgspec.Struct) -> Any:
        """Call the method with these arguments."""
        given = {name: getattr(arguments, name) for name in arguments.__struct_fields__}
        return getattr(store, self.name)(**given)


# --- trajectories: a message that many prompts share travels once ---------------------------------------------


class _Packed(msgspec.Struct, array_like=True):
    """A trajectory whose calls have indices into a list of distinct messages in place of the messages."""

    trajectory: Trajectory
    messages: list[Message]
    prompts: list[list[int]]


def _pack(trajectory: Trajectory) -> _Packed:
    messages: list[Message] = []
    index: dict[int, int] = {}
    prompts: list[list[int]] = []
    calls = []
    for placed in trajectory.calls:
        prompt: list[int] = []
        for message in placed.call.messages:
            at = index.setdefault(id(message), len(messages))
            if at == len(messages):
                messages.append(message)
            prompt.append(at)
        prompts.append(prompt)
        calls.append(msgspec.structs.replace(placed, call=msgspec.structs.replace(placed.call, messages=())))
    return _Packed(msgspec.structs.replace(trajectory, calls=tuple(calls)), messages, prompts)


def _unpack(packed: _Packed) -> Trajectory:
    calls = []
    for placed, prompt in zip(packed.trajectory.calls, packed.prompts, strict=True):
        messages = tuple(packed.messages[at] for at in prompt)
        call, ids = placed.call, placed.call.prompt_token_ids
        whole = msgspec.structs.replace(
            call, messages=messages, prompt_token_ids=None if ids is None else TokenIds.of(ids)
        )
        calls.append(msgspec.structs.replace(placed, call=whole))
    return msgspec.structs.replace(packed.trajectory, calls=tuple(calls))


# --- rows of a query: values that MessagePack does not know keep their type ------------------------------------

_FROM_TEXT: dict[int, Callable[[str], Any]] = {
    1: datetime.datetime.fromisoformat,
    2: datetime.date.fromisoformat,
    3: datetime.time.fromisoformat,
    4: lambda text: datetime.timedelta(microseconds=int(text)),
    5: Decimal,
    6: uuid.UUID,
    7: int,
}
_TUPLE, _MAPPING = 8, 9


def _tagged(value: Any) -> Any:
    match value:
        case None | bool() | str() | float() | bytes():
            return value
        case int():
            return value if INT64.start <= value < UINT64.stop else msgspec.msgpack.Ext(7, str(value).encode())
        case list():
            return [_tagged(item) for item in value]
        case tuple():
            return msgspec.msgpack.Ext(_TUPLE, msgspec.msgpack.encode([_tagged(item) for item in value]))
        case dict():
            pairs = [[_tagged(key), _tagged(item)] for key, item in value.items()]
            return msgspec.msgpack.Ext(_MAPPING, msgspec.msgpack.encode(pairs))
        case datetime.datetime():
            return msgspec.msgpack.Ext(1, value.isoformat().encode())
        case datetime.date():
            return msgspec.msgpack.Ext(2, value.isoformat().encode())
        case datetime.time():
            return msgspec.msgpack.Ext(3, value.isoformat().encode())
        case datetime.timedelta():
            return msgspec.msgpack.Ext(4, str(value // datetime.timedelta(microseconds=1)).encode())
        case Decimal():
            return msgspec.msgpack.Ext(5, str(value).encode())
        case uuid.UUID():
            return msgspec.msgpack.Ext(6, str(value).encode())
    return str(value)


def _untagged(code: int, data: memoryview) -> Any:
    if code == _TUPLE:
        return tuple(_rows.decode(data))
    if code == _MAPPING:
        return dict(_rows.decode(data))
    return _FROM_TEXT[code](bytes(data).decode())


_rows = msgspec.msgpack.Decoder(ext_hook=_untagged)


def _to_msgpack(value: Any) -> bytes:
    """What a method returns, in which an integer of whatever size may stand where a user's value does."""
    try:
        return msgspec.msgpack.encode(value, enc_hook=plain)
    except OverflowError:
        return msgspec.msgpack.encode(_large_tagged(msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=plain)))


def _large_tagged(value: Any) -> Any:
    match value:
        case dict():
            return {key: _large_tagged(item) for key, item in value.items()}
        case list() | tuple():
            return [_large_tagged(item) for item in value]
        case int():
            return _tagged(value)
    return value


def _encode_table(table: tuple[list[str], list[tuple[Any, ...]]]) -> bytes:
    columns, rows = table
    return msgspec.msgpack.encode((columns, [[_tagged(value) for value in row] for row in rows]))


def _decode_table(data: bytes) -> tuple[list[str], list[tuple[Any, ...]]]:
    columns, rows = _rows.decode(data)
    return columns, [tuple(row) for row in rows]


# --- the table ---------------------------------------------------------------------------------------------


def _operation(name: str) -> Operation:
    method = getattr(AnyStore, name)
    hints = get_type_hints(method)
    fields: list[Any] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, hints[parameter.name], *default))
    # An owner of an earlier version refuses what it does not know: what is not given is not sent.
    arguments = msgspec.defstruct(name, fields, frozen=True, omit_defaults=True, forbid_unknown_fields=True)
    return Operation(name, arguments, *_codec(name, hints["return"]))


def _codec(name: str, result: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    if name == "sql":
        return _encode_table, _decode_table
    if result == Trajectory:
        packed = msgspec.msgpack.Decoder(_Packed, ext_hook=_untagged)
        return lambda one: _to_msgpack(_pack(one)), lambda data: _unpack(packed.decode(data))
    if result == list[Trajectory]:
        several = msgspec.msgpack.Decoder(list[_Packed], ext_hook=_untagged)
        return (
            lambda many: _to_msgpack([_pack(one) for one in many]),
            lambda data: [_unpack(one) for one in several.decode(data)],
        )
    return _to_msgpack, msgspec.msgpack.Decoder(result, ext_hook=_untagged).decode


OPERATIONS: dict[str, Operation] = {name: _operation(name) for name in OPERATION_NAMES}
