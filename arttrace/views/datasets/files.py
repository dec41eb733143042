"""Files of rows: JSON lines or Parquet, and one beside it for what is held out. They appear whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol

import msgspec

from arttrace.formats.datasets.forms import Form, Row
from arttrace.records.values.tokens import plain
from arttrace.system.files import not_written, whole_file
from arttrace.system.processes import signals_after_imports


class RowFile(Protocol):
    """One file being written."""

    def write(self, row: Row) -> None:
        """Adds a row. Raises Unsuitable where the file cannot hold it."""

    def close(self) -> None:
        """Writes what is left."""


class _JsonLines:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, row: Row) -> None:
        self._file.write(msgspec.json.encode(row, enc_hook=plain))
        self._file.write(b"\n")

    def close(self) -> None:
        self._file.flush()


def _row_file(file: BinaryIO, form: Form) -> RowFile:
    if not form.is_parquet:
        return _JsonLines(file)
    with signals_after_imports(takes_long=False):
        from arttrace.views.datasets.parquet_file import ParquetFile
    return ParquetFile(file, form)


class DatasetFiles:
    """The file, and the one beside it for groups that are held out. Neither takes its place before both are written.
    Without an `output` rows go to standard output, as they come, and none is held out."""

    def __init__(self, output: Path | None, form: Form, *, held_out: bool) -> None:
        self._paths = [output]
        if held_out and output is not None:
            self._paths.append(output.with_suffix(f".held-out{output.suffix}"))
        self._form = form
        self._rows: list[RowFile] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> DatasetFiles:
        with contextlib.ExitStack() as opened:
            for path in self._paths:
                with _naming(path):
                    file = opened.enter_context(whole_file(path))
                    self._rows.append(_row_file(file, self._form))
            self._open = opened.pop_all()
        return self

    def write(self, row: Row, *, held_out: bool) -> None:
        """Adds a row. Raises Unsuitable where the file cannot hold it."""
        with _naming(self._paths[held_out]):
            self._rows[held_out].write(row)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):  # closing writes once more what there was no room for
                self._open.__exit__(kind, value, trace)
            return
        with _naming(self._paths[0]), self._open:
            for rows in self._rows:
                rows.close()


@contextlib.contextmanager
def _naming(path: Path | None) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads has enough
    except OSError as error:
        raise not_written(path, error) from error
