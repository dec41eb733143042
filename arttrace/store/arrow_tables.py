"""Rows as tables of Arrow, from which DuckDB inserts fastest. Its library is loaded with the first: most commands write
nothing.

The columns are put together from their bytes: where pandas is installed, `pyarrow.array` imports it to find out whether
the values are one of its own, which takes longer than all else that a command that writes loads, and 50 MB.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final

from arttrace.system.processes import signals_after_imports

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBERS: Final = {"BIGINT": ("q", "int64"), "TINYINT": ("b", "int8"), "DOUBLE": ("d", "float64")}
"""How Python's arrays and Arrow call them."""
_TEXTS: Final = {"VARCHAR": "large_string", "BLOB": "large_binary"}


def arrow_table(columns: Mapping[str, tuple[str, Sequence[Any]]]) -> pa.Table:
    """A table of columns of equal length: by its name each one's type, by DuckDB's word, and its values.

    Text may be UTF-8 already. Raises OverflowError for a number that its type does not hold, TypeError for a value of
    another type, and UnicodeError or ArrowInvalid for text that UTF-8 does not hold or that is none.
    """
    table: pa.Table = _arrow().table({name: _column(type, values) for name, (type, values) in columns.items()})
    return table


def checked_column(type: str, values: Sequence[Any]) -> list[Any]:
    """The values of a column of such a table as DuckDB takes them for parameters. Raises what `arrow_table` raises."""
    if number := _NUMBERS.get(type):
        array(number[0], [0 if value is None else value for value in values])
        return list(values)
    if type == "BIGINT[]":
        return [None if value is None else checked_column("BIGINT", value) for value in values]
    return [None if value is None else _checked_text(type, value) for value in values]


def _checked_text(type: str, value: Any) -> str | bytes:
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{value!r} is no text")
    written = value.encode() if isinstance(value, str) else value
    return written if type == "BLOB" else written.decode()


@cache
def _arrow() -> Any:
    with signals_after_imports(takes_long=False):
        import pyarrow
    return pyarrow


def _column(type: str, values: Sequence[Any]) -> pa.Array:
    pa = _arrow()
    present = _present(values) if None in values else None
    if number := _NUMBERS.get(type):
        code, arrow = number
        numbers = array(code, values if present is None else [0 if value is None else value for value in values])
        return pa.Array.from_buffers(getattr(pa, arrow)(), len(values), [present, pa.py_buffer(numbers)])
    if type == "BIGINT[]":
        lists = [() if value is None else value for value in values]
        items = _column("BIGINT", list(chain.from_iterable(lists)))
        ends = _ends(map(len, lists))
        return pa.Array.from_buffers(pa.large_list(pa.int64()), len(values), [present, ends], children=[items])
    written = [value.encode() if isinstance(value, str) else b"" if value is None else value for value in values]
    buffers = [present, _ends(map(len, written)), pa.py_buffer(b"".join(written))]
    column = pa.Array.from_buffers(getattr(pa, _TEXTS[type])(), len(values), buffers)
    column.validate(full=True)
    return column


def _present(values: Sequence[Any]) -> pa.Buffer:
    """A bit for each value, from the lowest of the first byte on: whether it is not None."""
    bits = int("".join("0" if value is None else "1" for value in reversed(values)), 2)
    return _arrow().py_buffer(bits.to_bytes((len(values) + 7) // 8, "little"))


def _ends(lengths: Iterable[int]) -> pa.Buffer:
    """Where each of several begins, one behind the other, and where the last one ends."""
    return _arrow().py_buffer(array("q", accumulate(lengths, initial=0)))
