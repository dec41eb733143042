"""`arttrace export`: the stored spans as received, or the SQL views as Parquet, for other systems."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import click

from arttrace.commands.shared.options import store_option
from arttrace.commands.shared.progress import Progress, reading_progress, say
from arttrace.commands.shared.run_filters import run_filters
from arttrace.formats.evaluations import is_reward_span, record_span, rewards_of
from arttrace.formats.files.known_ids import KnownIds
from arttrace.formats.otlp.encode_json import encode_json
from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.records.record import PlainRecord, decode_plain_record, encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.values.units import quantity
from arttrace.store import AnyStore, open_store
from arttrace.store.rows import tables
from arttrace.store.rows.columns import LAST_GIVEN
from arttrace.store.rows.left_out import IS_MARK, IS_STAND_IN, LEFT_OUT
from arttrace.store.sql_text import listed, quoted
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.views.datasets.view_files import write_views
from arttrace.views.run_filter import RunFilter, matching_pages

_SPANS_AT_ONCE, _RECORDS_AT_ONCE, _IDS_AT_ONCE = 10_000, 5_000, 500
_CHARACTERS_AT_ONCE = 16 << 20
_FORMS: dict[str, Callable[[list[SpanRow]], bytes]] = {
    "otlp-json": lambda spans: encode_json(spans) + b"\n",
    "otlp-protobuf": encode_protobuf,
}
_PARQUET = "parquet"
_PLAIN_TABLES = {
    tables.REWARDS.name: "id",
    **dict.fromkeys((tables.JUDGEMENTS.name, tables.GROUPINGS.name, tables.POLICY_STEPS.name), "content_hash"),
}
"""Each table, with the column by which it is read page by page; a reward's id occurs as often as the reward was
given."""


@click.command("export")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--format", "form", type=click.Choice([*_FORMS, _PARQUET]), default="otlp-json", show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="A file; for parquet a folder.  [default: print]")
@run_filters
@store_option
def command(ids: tuple[str, ...], form: str, output: Path | None, data: DataDir, wanted: RunFilter) -> None:
    """Write the spans of the trajectories ID, of the runs that match, or of everything, as received: one OTLP/JSON
    request per line, or one request in protobuf. With parquet, write the views of `arttrace sql`, one file each, into
    the folder OUTPUT.

    `arttrace import` and any OTLP receiver read the spans again, and the rewards, which are spans of their own. Import
    also reads the notes, judgements, groupings and policy steps; for other receivers these are spans without a meaning.
    """
    if form == _PARQUET and (ids or wanted or output is None):
        raise click.UsageError(
            "parquet exports every view as a whole into a folder: pass --output, and neither IDs nor conditions"
        )
    if ids and wanted:
        raise click.UsageError("pass either IDs or conditions such as --tag")
    with open_store(data) as store, reading_progress():
        if form == _PARQUET and output is not None:
            _write_views(store, output)
            return
        if wanted:
            ids = tuple({run.id: None for page in matching_pages(store, wanted) for run in page})
            if not ids:
                raise ArttraceError("No run matches: nothing is exported.", "`arttrace ls` takes the same conditions.")
        try:
            if output is None:
                _write(store, ids, _FORMS[form], sys.stdout.buffer)
                return
            with output.open("wb") as file:
                written = _write(store, ids, _FORMS[form], file)
        except OSError as error:
            raise ArttraceError(
                f"{output or 'standard output'} cannot be written: {error.strerror or error}"
            ) from error
    counts = [quantity(count, what) for what, count in written.items() if count or what == "span"]
    click.echo(f"{' and '.join(counts)} in {output}")


def _write_views(store: AnyStore, folder: Path) -> None:
    bars: dict[str, Progress] = {}

    def progress(view: str, done: int, total: int) -> None:
        bar = bars.setdefault(view, Progress(total, f"rows of {view}", say, tells_short=False))
        bar(done)

    for view, rows in write_views(store, folder, progress).items():
        click.echo(f"{quantity(rows, 'row')} in {folder / view}.parquet")


def _write(
    store: AnyStore, ids: tuple[str, ...], encode: Callable[[list[SpanRow]], bytes], file: BinaryIO
) -> dict[str, int]:
    """How much was written: spans, rewards that are not on them in their present form, other records. Spans that only
    carry a reward are made anew: the reward may have been replaced meanwhile, or taken back."""
    written = {"span": 0, "reward": 0, "other record": 0}
    known = KnownIds()
    named: set[str] = set()
    for found in _of_trajectories(store, ids, named) if ids else _everything(store):
        spans = [span for span in found if not is_reward_span(span)]
        written["span"] += len(spans)
        known.add(_digest(reward) for span in spans for reward in rewards_of(span))
        _write_requests(spans, encode, file)
    for records in _rewards_of(store, sorted(named)) if ids else _all_records(store):
        new = [one for one in records if known.adds(_digest(one))]
        rewards = sum(isinstance(one, Reward) and one.counts for one in new)
        written["reward"] += rewards
        written["other record"] += len(new) - rewards
        _write_requests(map(record_span, new), encode, file)
    return written


def _write_requests(spans: Iterable[SpanRow], encode: Callable[[list[SpanRow]], bytes], file: BinaryIO) -> None:
    """As many requests as needed for each to be readable again, however long a run is."""
    batch: list[SpanRow] = []
    characters = 0
    for span in spans:
        batch.append(span)
        characters += sum(len(value) for value in span.attributes.values() if isinstance(value, str))
        if len(batch) >= _SPANS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            file.write(encode(batch))
            batch, characters = [], 0
    if batch:
        file.write(encode(batch))


def _digest(record: PlainRecord) -> bytes:
    return hashlib.blake2b(encode_record(record), digest_size=16).digest()


def _rewards_of(store: AnyStore, ids: Sequence[str]) -> Iterator[list[PlainRecord]]:
    """The rewards of these runs and traces, and of conversations in them."""
    for start in range(0, len(ids), _IDS_AT_ONCE):
        among = listed(ids[start : start + _IDS_AT_ONCE])
        where = f"trajectory_id IN ({among}) OR split_part(trajectory_id, ':', 1) IN ({among})"
        yield _last_given(store, f"id IN (SELECT id FROM reward_records WHERE {where})")  # noqa: S608


def _all_records(store: AnyStore) -> Iterator[list[PlainRecord]]:
    """Every record that is not a span, some thousand at a time; of the rewards with one id, the last."""
    distinct = " + ".join(f"(SELECT count(DISTINCT {key}) FROM {table})" for table, key in _PLAIN_TABLES.items())  # noqa: S608
    [(total,)] = store.sql(f"SELECT {distinct}")[1]
    bar = Progress(total, "rewards and other records", say, tells_short=False)
    done = 0
    for table, key in _PLAIN_TABLES.items():
        where = "true"
        while True:
            page = f"SELECT {key} FROM {table} WHERE {where} ORDER BY 1 LIMIT {_RECORDS_AT_ONCE}"  # noqa: S608
            [(last,)] = store.sql(f"SELECT max({key}) FROM ({page})")[1]  # noqa: S608
            if last is None:
                break
            bounds = f"{where} AND {key} <= {quoted(last)}"
            found = _last_given(store, bounds) if key == "id" else _records(store, table, bounds)
            yield found
            done += len(found)
            bar(done)
            where = f"{key} > {quoted(last)}"


def _last_given(store: AnyStore, where: str) -> list[PlainRecord]:
    return _records(store, "reward_records", f"{where} QUALIFY {LAST_GIVEN}")


def _records(store: AnyStore, table: str, where: str) -> list[PlainRecord]:
    _, rows = store.sql(f"SELECT document FROM {table} WHERE {where}")  # noqa: S608
    return [decode_plain_record(document) for (document,) in rows]


def _of_trajectories(store: AnyStore, ids: tuple[str, ...], named: set[str]) -> Iterator[list[SpanRow]]:
    """The spans of each; `named` gets the ids of the runs and of their traces."""
    written: set[str] = set()  # a trace may be in several runs
    bar = Progress(len(ids), "runs", say, tells_short=False)
    for done, id in enumerate(ids, start=1):
        run = store.trajectory(id).id
        spans = [span for span in store.spans(run) if span.trace_id not in written]
        traces = {span.trace_id for span in spans}
        written |= traces
        named |= {run, *traces}
        yield spans
        bar(done)


def _everything(store: AnyStore) -> Iterator[list[SpanRow]]:
    """One trace after the other, in order of start, some thousand spans at a time, with progress."""
    _, rows = store.sql(
        f"""SELECT trace_id, count(*) FROM span_records
        WHERE ({IS_STAND_IN} OR NOT ({IS_MARK})) AND (trajectory_id IN ({LEFT_OUT})) IS NOT TRUE
        GROUP BY trace_id ORDER BY min(start_ns), trace_id"""  # noqa: S608
    )
    bar = Progress(sum(spans for _, spans in rows), "spans", say, tells_short=False)
    traces: list[str] = []
    span_count = done = 0
    for place, (trace_id, spans) in enumerate(rows, start=1):
        traces.append(trace_id)
        span_count += spans
        if span_count >= _SPANS_AT_ONCE or place == len(rows):
            of_trace: dict[str, list[SpanRow]] = {trace: [] for trace in traces}
            for span in store.spans_of_traces(traces):
                of_trace[span.trace_id].append(span)
            yield from of_trace.values()
            done += span_count
            bar(done)
            traces, span_count = [], 0
