"""`arttrace export`: the stored spans, as they came, for other systems."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from arttrace.commands.options import dir_option
from arttrace.errors import ArttraceError
from arttrace.formats.otlp_json import encode_json
from arttrace.formats.otlp_protobuf import encode_protobuf
from arttrace.paths import DataDir
from arttrace.records.span import SpanRow
from arttrace.store import AnyStore, open_store

_FORMS: dict[str, Callable[[list[SpanRow]], bytes]] = {
    "otlp-json": lambda spans: encode_json(spans) + b"\n",
    "otlp-protobuf": encode_protobuf,
}


@click.command("export")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--format", "form", type=click.Choice(list(_FORMS)), default="otlp-json", show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="A file.  [default: print]")
@dir_option
def command(ids: tuple[str, ...], form: str, output: Path | None, data: DataDir) -> None:
    """Write the spans of the trajectories ID (or of everything) as they came: one OTLP/JSON request per line, or one
    request in protobuf.

    `arttrace import` and any OTLP receiver take them in again.
    """
    with open_store(data) as store:
        try:
            if output is None:
                _write(store, ids, _FORMS[form], sys.stdout.buffer)
                return
            with output.open("wb") as file:
                count = _write(store, ids, _FORMS[form], file)
        except OSError as error:
            raise ArttraceError(
                f"{output or 'standard output'} cannot be written: {error.strerror or error}"
            ) from error
    click.echo(f"{count} spans in {output}")


def _write(store: AnyStore, ids: tuple[str, ...], encode: Callable[[list[SpanRow]], bytes], file: BinaryIO) -> int:
    count = 0
    written: set[str] = set()
    for id in _traces(store) if not ids else (store.trajectory(id).id for id in ids):
        spans = [span for span in store.spans(id) if span.trace_id not in written]  # a trace may be in several runs
        written.update(span.trace_id for span in spans)
        count += len(spans)
        if spans:
            file.write(encode(spans))
    return count


def _traces(store: AnyStore) -> Iterator[str]:
    _, rows = store.sql("SELECT trace_id FROM span_records GROUP BY trace_id ORDER BY min(start_ns), trace_id")
    return (trace_id for (trace_id,) in rows)
