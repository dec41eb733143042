"""`arttrace export`: the stored spans as received, or the SQL views as Parquet, for other systems."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import click

from arttrace.commands.data.texts_on_disk import TextsOnDisk
from arttrace.commands.shared.bars import show_no_bars
from arttrace.commands.shared.options import file_or_standard_output, store_option
from arttrace.commands.shared.progress import Progress, say
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
from arttrace.store.access.run_spans import spans_in_parts
from arttrace.store.bounded_parts import sized_parts, spans_at_once
from arttrace.store.rows import tables
from arttrace.store.rows.columns import LAST_GIVEN
from arttrace.store.rows.left_out import IS_MARK, IS_STAND_IN, LEFT_OUT, is_mark
from arttrace.store.sql_text import listed, quoted
from arttrace.system.errors import ArttraceError
from arttrace.system.files import not_written, whole_file
from arttrace.system.paths import DataDir
from arttrace.system.processes import signals_after_imports
from arttrace.trajectories.identity.membership import LINK_LOST
from arttrace.trajectories.identity.reward_membership import before_colons
from arttrace.views.run_filter import RunFilter, matching_pages

_SPANS_AT_ONCE, _TRACES_AT_ONCE, _RECORDS_AT_ONCE, _IDS_AT_ONCE = 250, 10_000, 5_000, 200
_NAMED = 3
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
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    callback=file_or_standard_output,
    help="A file; for parquet a folder.  [default: -, standard output]",
)
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
    if output is None and sys.stdout.isatty():
        show_no_bars()
    with open_store(data) as store:
        if form == _PARQUET and output is not None:
            _write_views(store, output)
            return
        runs = _named(store, ids, wanted)
        if wanted and not len(runs):
            raise ArttraceError("No run matches: nothing is exported.", "`arttrace ls` takes the same conditions.")
        try:
            with whole_file(output) as file:
                written = _write(store, runs, _FORMS[form], file)
        except BrokenPipeError:
            raise  # whoever reads has enough: the group ends the command, as it does others
        except OSError as error:
            raise not_written(output, error) from error
    if output is None:
        return
    counts = [quantity(count, what) for what, count in written.items() if count or what == "span"]
    click.echo(f"{' and '.join(counts)} in {output}")


def _write_views(store: AnyStore, folder: Path) -> None:
    with signals_after_imports(takes_long=False):
        from arttrace.views.datasets.view_files import write_views  # Arrow, which no other form needs

    bars: dict[str, Progress] = {}

    def progress(view: str, done: int, total: int) -> None:
        bar = bars.setdefault(view, Progress(total, f"rows of {view}", tells_short=False))
        bar(done)

    for view, rows in write_views(store, folder, progress).items():
        click.echo(f"{quantity(rows, 'row')} in {folder / view}.parquet")


def _named(store: AnyStore, ids: tuple[str, ...], wanted: RunFilter) -> TextsOnDisk:
    """The ids of the runs that are wanted; none where it is everything."""
    runs = TextsOnDisk()
    for id in ids:
        runs.adds(store.trajectory(id).id)
    for page in matching_pages(store, wanted) if wanted else ():
        for run in page:
            runs.adds(run.id)
    return runs


def _write(
    store: AnyStore, runs: TextsOnDisk, encode: Callable[[list[SpanRow]], bytes], file: BinaryIO
) -> dict[str, int]:
    """How much was written: spans, rewards that are not on them in their present form, other records. Spans that only
    carry a reward are made anew: the reward may have been replaced meanwhile, or taken back."""
    written = {"span": 0, "reward": 0, "other record": 0}
    known = KnownIds()
    traces, linked = TextsOnDisk(), TextsOnDisk()
    for found in _of_runs(store, runs, traces, linked) if len(runs) else _everything(store, traces):
        spans = [span for span in found if not is_reward_span(span)]
        written["span"] += len(spans)
        known.add(_digest(reward) for span in spans for reward in rewards_of(span))
        _write_requests(spans, encode, file)
    for records in _rewards_of(store, runs, traces) if len(runs) else _all_records(store):
        new = [one for one in records if known.adds(_digest(one))]
        rewards = sum(isinstance(one, Reward) and one.counts for one in new)
        written["reward"] += rewards
        written["other record"] += len(new) - rewards
        _write_requests(map(record_span, new), encode, file)
    _say_left_behind(store, [trace for part in linked.parts(_IDS_AT_ONCE) for trace in part if traces.adds(trace)])
    return written


def _say_left_behind(store: AnyStore, traces: list[str]) -> None:
    """Says that runs link to these traces, which are not exported."""
    if not traces:
        return
    first = listed(traces[:_NAMED])
    where = f"trace_id IN ({first}) AND trajectory_id IS NOT NULL"
    query = f"SELECT DISTINCT trajectory_id FROM spans WHERE {where} ORDER BY 1"  # noqa: S608
    runs = [run for (run,) in store.sql(query)[1]]
    more = ", ..." if len(runs) > _NAMED or len(traces) > _NAMED else ""
    which = "trace that these runs link to is" if len(traces) == 1 else "traces that these runs link to are"
    say(
        f"{len(traces)} {which} of another run, and not exported. Imported without, such a run says "
        f'"{LINK_LOST}"; to export what it links to as well, name too: {", ".join(runs[:_NAMED])}{more}'
    )


def _write_requests(spans: Iterable[SpanRow], encode: Callable[[list[SpanRow]], bytes], file: BinaryIO) -> None:
    """As many requests as needed for each to be readable again, however long a run is."""
    batch: list[SpanRow] = []
    characters = 0
    for span in spans:
        batch.append(span)
        characters += span.characters
        if len(batch) >= _SPANS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            file.write(encode(batch))
            batch, characters = [], 0
    if batch:
        file.write(encode(batch))


def _digest(record: PlainRecord) -> bytes:
    return hashlib.blake2b(encode_record(record), digest_size=16).digest()


def _rewards_of(store: AnyStore, *named: TextsOnDisk) -> Iterator[list[PlainRecord]]:
    """The rewards of these runs and traces, and of conversations in them."""
    for ids in chain.from_iterable(one.parts(_IDS_AT_ONCE) for one in named):
        among = listed(ids)
        where = f"trajectory_id IN ({among}) OR split_part(trajectory_id, ':', 1) IN ({among})"
        yield _last_given(store, f"id IN (SELECT id FROM reward_records WHERE {where})")  # noqa: S608


def _all_records(store: AnyStore) -> Iterator[list[PlainRecord]]:
    """Every record that is not a span, some thousand at a time; of the rewards with one id, the last."""
    distinct = " + ".join(f"(SELECT count(DISTINCT {key}) FROM {table})" for table, key in _PLAIN_TABLES.items())  # noqa: S608
    [(total,)] = store.sql(f"SELECT {distinct}")[1]
    bar = Progress(total, "rewards and other records", tells_short=False)
    at_once = min(spans_at_once(total), _RECORDS_AT_ONCE)
    done = 0
    for table, key in _PLAIN_TABLES.items():
        where = "true"
        while True:
            page = f"SELECT {key} FROM {table} WHERE {where} ORDER BY 1 LIMIT {at_once}"  # noqa: S608
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


def _of_runs(store: AnyStore, runs: TextsOnDisk, traces: TextsOnDisk, linked: TextsOnDisk) -> Iterator[list[SpanRow]]:
    """The spans of these, one trace after the other; `traces` gets the ids of their traces, of which one may be in
    several runs, and `linked` those of other runs' traces that they link to."""
    bar = Progress(len(runs), "runs", tells_short=False)
    done = 0
    for ids in runs.parts(_IDS_AT_ONCE):
        new = [(trace, spans) for trace, spans in _traces_of(store, ids, linked) if traces.adds(trace)]
        for part in sized_parts(new, spans_at_once(0)):
            for found in spans_in_parts(store, part):
                yield [span for span in found if not is_mark(span)]
        done += len(ids)
        bar(done)


def _traces_of(store: AnyStore, ids: list[str], linked: TextsOnDisk) -> list[tuple[str, int]]:
    """The traces of these runs, those that link to them, and those of nobody's run that they link to, in order of
    start, with the number of spans of each; `linked` gets those of other runs."""
    runs, query = set(ids), "SELECT DISTINCT trajectory_id, trace_id FROM span_records WHERE trajectory_id IN ({0})"
    named = store.sql(f"{query} OR trace_id IN ({{0}})".format(listed(ids)))[1]
    above = {part for id in runs.difference(*named) for part in before_colons(id)}
    found = {trace for _, trace in (*named, *store.sql(query.format(listed(above) or "NULL"))[1])}
    new = found
    while new:
        linking = store.sql(f"SELECT trace_id FROM links WHERE linked_trace_id IN ({listed(new)})")[1]  # noqa: S608
        new = {trace for (trace,) in linking} - found
        found |= new
    above_them = f"SELECT linked_trace_id FROM links WHERE trace_id IN ({listed(found)})"  # noqa: S608
    is_of_runs = "SELECT trace_id, max(trajectory_id) IS NOT NULL FROM span_records WHERE trace_id IN ({0}) GROUP BY 1"
    for trace, of_a_run in store.sql(is_of_runs.format(above_them))[1]:
        if not of_a_run:
            found.add(trace)
        elif trace not in found:
            linked.adds(trace)
    return [(trace, spans) for trace, spans, _ in _sizes(store, f"trace_id IN ({listed(found)})", "3, 1")]


def _sizes(store: AnyStore, where: str, order: str) -> list[tuple[str, int, int]]:
    """The ids of traces, each with the number of its spans and its start."""
    query = f"SELECT trace_id, count(*), min(start_ns) FROM span_records WHERE {where} GROUP BY 1 ORDER BY {order}"  # noqa: S608
    return [(trace, spans, start_ns) for trace, spans, start_ns in store.sql(query)[1]]


def _everything(store: AnyStore, traces: TextsOnDisk) -> Iterator[list[SpanRow]]:
    """One trace after the other, in order of start, with progress; `traces` gets their ids."""
    where = f"({IS_STAND_IN} OR NOT ({IS_MARK})) AND (trajectory_id IN ({LEFT_OUT})) IS NOT TRUE"
    after = ""
    while page := _sizes(store, where + after, f"1 LIMIT {_TRACES_AT_ONCE}"):
        traces.add(page)
        after = f" AND trace_id > {quoted(page[-1][0])}"
    total = traces.total()
    bar = Progress(total, "spans", tells_short=False)
    done = 0
    for part in traces.parts(spans_at_once(total)):
        for found in spans_in_parts(store, part):
            yield found
            done += len(found)
        bar(done)
