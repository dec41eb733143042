"""`arttrace import`: traces and conversations of other systems, from files into the data directory."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from arttrace.commands.data.earlier_readings import EarlierReadings
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import json_option, store_option
from arttrace.commands.shared.progress import Progress
from arttrace.formats.content_ids import ContentIds
from arttrace.formats.files.unpacked import Unreadable, without_ending
from arttrace.formats.imported_files import Imported, read_records
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import well_formed
from arttrace.records.values.units import counted, quantity
from arttrace.store import AnyStore, open_store
from arttrace.store.sql_text import quoted
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.trajectories.identity.stand_ins import is_stand_in
from arttrace.views.terminal import unread_lines

_IDS_AT_ONCE = 1_000_000
_FORMS = "`arttrace import --help` lists the known forms."


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the source of conversations.  [default: the file's name]")
@json_option
@store_option
def command(files: tuple[Path, ...], name: str | None, as_json: bool, data: DataDir) -> None:
    """Import FILES (JSON, JSON lines, Parquet; compressed with gzip, zstd, bzip2 or xz), each in any of these forms:

    \b
      OTLP traces: JSON, JSON lines or protobuf, of any OpenTelemetry SDK
      OTLP logs, of the same: their GenAI events, which join the spans they are about
      exports of Langfuse (traces with observations and scores, or observations), LangSmith (runs),
        Braintrust (spans), W&B Weave (calls) and Phoenix (spans), with feedback, scores and annotations as rewards
      trajectories of ART (groups as JSON, logs as Parquet), ATIF (Harbor), SWE-agent and mini-swe-agent
      results of verifiers, prime-rl, OpenAI's Evals, logs of Inspect AI, episodes of rLLM, rollouts of
        NeMo Gym, verl and Agent Lightning
      sessions of Claude Code, of the Codex CLI and of the Gemini CLI
      chat completions that OpenAI stored, with what was asked under "messages"; batch results with requests
      conversations: OpenAI's or Anthropic's messages under "messages" (or "traj"), with "reward" and "task_id"
        where there are
      training data: TRL's prompts with completions and preferences, OpenAI's preferences, ShareGPT
      exchanges: {"request": ..., "response": ...} of chat completions or of Anthropic's Messages API, with "reward"
        and "task_id" beside them
      records that arttrace wrote

    A file imported twice is stored once. Runs with the same task id are a group. Exit code 1: something was refused, or
    a file cannot be read; everything else is in the store.
    """
    distinct: dict[str, Path] = {}
    for file in files:
        distinct.setdefault(os.path.realpath(file), file)
    for file in distinct.values():  # before a store is made for nothing
        if not os.access(file, os.R_OK):
            with _read(file):
                file.open("rb").close()
        if file.is_dir():
            named = well_formed(str(file))
            raise ArttraceError(f"{named} is a directory", f"Name its files: arttrace import {shlex.quote(named)}/*")
        if not file.is_file():
            raise ArttraceError(f"{file} is a pipe or a device, and is read twice", "Write it to a file first.")
    done: list[dict[str, Any]] = []
    unread: list[_Unread] = []
    refused = 0
    with open_store(data, create=True) as store:
        ids = ContentIds(partial(_traces, store))
        for file in distinct.values():
            report, why = _import(file, name, store, ids)
            if why is None:
                refused += report["refused"]
            else:
                unread.append(why)
                report["refused"], report["reasons"] = report["refused"] or 1, report["reasons"] or [why.message]
            done.append(report)
            if not as_json and (why is None or len(distinct) > 1):
                _show(report, why)
    if as_json:
        print_json(done)
    _fail_for(unread, len(distinct), refused)


def _traces(store: AnyStore) -> Iterator[str]:
    """The ids of all traces in the store, in order."""
    last, some = "", _IDS_AT_ONCE
    while some == _IDS_AT_ONCE:
        behind = f"SELECT DISTINCT trace_id FROM span_records WHERE trace_id > {quoted(last)}"  # noqa: S608
        found = [id for (id,) in store.sql(f"{behind} ORDER BY 1 LIMIT {_IDS_AT_ONCE}")[1]]
        yield from found
        last, some = found[-1] if found else "", len(found)


def _fail_for(unread: list[_Unread], files: int, refused: int) -> None:
    """Raises ArttraceError where something was not read."""
    items = f"{quantity(refused, 'item')} in the {'others' if unread else 'files'}" if refused else ""
    if len(unread) == files == 1:
        raise unread[0]
    if unread:
        which = f"{len(unread)} of {quantity(files, 'file')}{f', and {items},' if items else ''}"
        raise ArttraceError(f"{which} cannot be read", f"All else is in the store. {_FORMS}")
    if items:
        raise ArttraceError(f"{items} cannot be read", "All else is in the store.")


class _Unread(ArttraceError):
    """Why nothing was read of a file, or not all of it."""


def _import(file: Path, name: str | None, store: AnyStore, ids: ContentIds) -> tuple[dict[str, Any], _Unread | None]:
    """What of a file was stored, and why not all of it, where it is in no known form or reading it fails."""
    found, new, given, earlier = Imported(), 0, 0, EarlierReadings(store)
    why = None
    source = well_formed(name or without_ending(file.name).rpartition(".")[0] or file.name)
    try:
        with _read(file), file.open("rb") as opened:
            size = file.stat().st_size
            progress = Progress(size >> 20, f"MiB of {file.name}", tells_short=False)
            for batch in read_records(opened, size, source, found, ids):
                records = earlier.without(batch)
                if stand_ins := [one for one in records if isinstance(one, SpanRow) and is_stand_in(one)]:
                    store.append(stand_ins)  # they are counted as refused
                    records = [one for one in records if not (isinstance(one, SpanRow) and is_stand_in(one))]
                new += store.append(records)
                given += len(batch.records) - len(stand_ins)
                if size >> 20:
                    progress(batch.position >> 20)
            progress.end()
    except KeyboardInterrupt:
        stored = quantity(new, "new record")
        click.echo(f"{file}: {stored} stored until here; import it again for the rest.", err=True)
        raise
    except Unreadable as error:
        why = _Unread(f"{file} is in no known form: {error}", _FORMS)
    except _Unread as error:
        why = error
    return _report(file, found, new, given - new, earlier.runs), why


@contextmanager
def _read(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "Check its path." if isinstance(error, FileNotFoundError) else None
        raise _Unread(f"{file} cannot be read: {error.strerror or error}", hint) from error


def _report(file: Path, imported: Imported, new: int, already_stored: int, stored_otherwise: int) -> dict[str, Any]:
    return {
        "file": well_formed(str(file)),
        "kinds": imported.kinds,
        "traces": imported.traces,
        "spans": imported.spans,
        "rewards": imported.rewards,
        "other_records": imported.other_records,
        "new": new,
        "already_stored": already_stored,
        "stored_otherwise": stored_otherwise,
        "unread": imported.unread,
        "left_out": imported.left_out,
        "refused": imported.refused,
        "reasons": imported.reasons,
    }


def _show(report: dict[str, Any], unread: _Unread | None) -> None:
    if unread is not None:
        click.secho(unread.message, fg="yellow", err=True)
        return
    kinds = ", ".join(counted(count, kind) for kind, count in report["kinds"].items())
    counts = [quantity(report[f"{what}s"], what) for what in ("trace", "span", "reward")]
    if others := report["other_records"]:
        counts.append(quantity(others, "other record"))
    already = report["already_stored"]
    known = f": {report['new']} new, {already} already stored" if already else ""
    click.echo(f"{report['file']}: {kinds}: {', '.join(counts)}{known}")
    if otherwise := report["stored_otherwise"]:
        click.secho(
            f"  {quantity(otherwise, 'run')} of it already stored in another reading (an earlier version of arttrace"
            " imported the file, or it changed since) and left as stored: to have it read anew, import it into another"
            " --dir",
            fg="yellow",
            err=True,
        )
    for line in unread_lines(report["unread"]):
        click.secho(f"  {line}", fg="yellow", err=True)
    if report["left_out"]:
        left_out = ", ".join(f"{what} ({count})" for what, count in report["left_out"].items())
        click.secho(f"  left out: {left_out}", fg="yellow", err=True)
    if report["refused"]:
        click.secho(f"  {report['refused']} refused: {'; '.join(report['reasons'])}", fg="yellow", err=True)
