"""`arttrace export`: the stored spans, as they came, or the views of SQL as Parquet, for other systems."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from arttrace.commands.shared.options import store_option
from arttrace.commands.shared.progress import Progress, reading_told
from arttrace.commands.shared.run_filters import run_filters
from arttrace.formats.evaluations import is_reward_span, reward_span, rewards_of
from arttrace.formats.otlp.encode_json import encode_json
from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.store import AnyStore, open_store
from arttrace.store.rows.left_out import IS_MARK, LEFT_OUT
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.views.datasets.view_files import write_views
from arttrace.views.run_filter import RunFilter, matching_pages

_SPANS_AT_ONCE = 10_000
_FORMS: dict[str, Callable[[list[SpanRow]], bytes]] = {
    "otlp-json": lambda spans: encode_json(spans) + b"\n",
    "otlp-protobuf": encode_protobuf,
}
_PARQUET = "parquet"
_OF_REWARD = ("id", "trajectory_id", "value", "name", "source", "agent_id", "explanation", "time_ns")


@click.command("export")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--format", "form", type=click.Choice([*_FORMS, _PARQUET]), default="otlp-json", show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="A file, of parquet a folder.  [default: print]")
@run_filters
@store_option
def command(ids: tuple[str, ...], form: str, output: Path | None, data: DataDir, wanted: RunFilter) -> None:
    """Write the spans of the trajectories ID, of the runs that match, or of everything, as they came: one OTLP/JSON
    request per line, or one request in protobuf. With parquet, the views of `arttrace sql`, a file for each, in the
    folder OUTPUT.

    `arttrace import` and any OTLP receiver take spans in again, rewards too, which are spans of their own.
    """
    if form == _PARQUET and (ids or wanted or output is None):
        raise click.UsageError("parquet is all of every view, in a folder: give --output, no ID and no condition")
    if ids and wanted:
        raise click.UsageError("give IDs, or conditions such as --tag")
    with open_store(data) as store, reading_told():
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
                spans, rewards = _write(store, ids, _FORMS[form], file)
        except OSError as error:
            raise ArttraceError(
                f"{output or 'standard output'} cannot be written: {error.strerror or error}"
            ) from error
    and_rewards = f" and {rewards} reward{'s' * (rewards > 1)}" if rewards else ""
    click.echo(f"{spans} spans{and_rewards} in {output}")


def _write_views(store: AnyStore, folder: Path) -> None:
    bars: dict[str, Progress] = {}

    def progress(view: str, done: int, total: int) -> None:
        bar = bars.setdefault(
            view, Progress(total, f"rows of {view}", lambda line: click.echo(line, err=True), tells_short=False)
        )
        bar(done)

    for view, rows in write_views(store, folder, progress).items():
        click.echo(f"{rows} rows in {folder / view}.parquet")


def _write(
    store: AnyStore, ids: tuple[str, ...], encode: Callable[[list[SpanRow]], bytes], file: BinaryIO
) -> tuple[int, int]:
    """How many spans were written, and how many rewards that do not stand on them as they are by now. Spans that only
    carry a reward are made anew: it may have been given again meanwhile, or taken back."""
    count = reward_count = 0
    written: set[tuple[str, float, int]] = set()
    for found in _of_trajectories(store, ids) if ids else _everything(store):
        spans = [span for span in found if not is_reward_span(span)]
        count += len(spans)
        written.update(_as_given(reward) for span in spans for reward in rewards_of(span))
        if spans:
            file.write(encode(spans))
    for rewards in (store.trajectory(id).rewards for id in ids) if ids else _all_rewards(store):
        if given := [reward for reward in rewards if _as_given(reward) not in written]:
            reward_count += len(given)
            file.write(encode([reward_span(reward) for reward in given]))
            written.update(map(_as_given, given if ids else ()))  # an id may be given twice
    return count, reward_count


def _as_given(reward: Reward) -> tuple[str, float, int]:
    """What tells it from one that was given before under its id, in what the view of rewards has of it."""
    return reward.id, reward.value, reward.time_ns // 1000


def _all_rewards(store: AnyStore) -> Iterator[list[Reward]]:
    after = "WHERE true"
    while True:
        _, rows = store.sql(
            f"""SELECT id, trajectory_id, value, name, source, agent_id, explanation, coalesce(epoch_ns(given), 0)
            FROM rewards {after} ORDER BY id LIMIT {_SPANS_AT_ONCE}"""  # noqa: S608
        )
        if not rows:
            return
        yield [msgspec.convert(dict(zip(_OF_REWARD, row, strict=True)), Reward) for row in rows]
        after = "WHERE id > '" + str(rows[-1][0]).replace("'", "''") + "'"


def _of_trajectories(store: AnyStore, ids: tuple[str, ...]) -> Iterator[list[SpanRow]]:
    written: set[str] = set()
    bar = Progress(len(ids), "runs", lambda line: click.echo(line, err=True), tells_short=False)
    for done, id in enumerate(ids, start=1):
        spans = [span for span in store.spans(store.trajectory(id).id) if span.trace_id not in written]
        written.update(span.trace_id for span in spans)  # a trace may be in several runs
        yield spans
        bar(done)


def _everything(store: AnyStore) -> Iterator[list[SpanRow]]:
    """One trace after the other, as they began, read some thousands of spans at a time. Says how far it is."""
    _, rows = store.sql(
        f"""SELECT trace_id, count(*) FROM span_records
        WHERE NOT ({IS_MARK}) AND (trajectory_id IN ({LEFT_OUT})) IS NOT TRUE
        GROUP BY trace_id ORDER BY min(start_ns), trace_id"""  # noqa: S608
    )
    bar = Progress(sum(spans for _, spans in rows), "spans", lambda line: click.echo(line, err=True), tells_short=False)
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
