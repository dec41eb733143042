"""`arttrace prune`: removes old runs from the store and frees their space."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from arttrace.commands.shared import units
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import json_option, store_option
from arttrace.commands.shared.progress import Progress, watched
from arttrace.formats.imported_run import is_undated
from arttrace.records.values.units import size_text
from arttrace.store import open_store
from arttrace.store.file.duckdb_file import copy_beside
from arttrace.store.file.prune import Pruned, counts_text
from arttrace.system.paths import DataDir
from arttrace.views.labels import one_line

_LOOK_S = 1.0
_MEGA = 1_000_000


@click.command("prune")
@click.option(
    "--older-than", "age_ns", metavar="AGE", callback=units.age_ns, help="Remove runs that are older: 30d, 12h."
)
@click.option(
    "--max-size",
    "max_bytes",
    metavar="SIZE",
    callback=units.size_bytes,
    help="Remove the oldest until the file fits: 10GB.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@json_option
@store_option
def command(age_ns: int | None, max_bytes: int | None, dry_run: bool, as_json: bool, data: DataDir) -> None:
    """Remove old runs from the store.

    A run's age counts from when it ended or when it arrived in the store, whichever is later: what was imported
    yesterday is a day old, whenever it happened. The runs to be removed are listed first, by where they came from.

    A run that has not ended is kept. A run that was killed counts as not ended for a day after its last span arrived.

    A reward that is as old and waits for a run that never came is removed as well; one without a time stays.

    What sampling left out more than an hour ago (see capture/sampling.md) is removed as well, whatever its age.

    The record of what policies consumed, their steps and paid-for judgements are kept. A new file is written and
    replaces the old one in one step: there must be room for what is kept.
    """
    if age_ns is None and max_bytes is None:
        raise click.UsageError("say what to remove: --older-than AGE, --max-size SIZE, or both")
    before_ns = None if age_ns is None else time.time_ns() - age_ns
    with open_store(data) as store:
        found = store.prune(before_ns=before_ns, max_bytes=max_bytes, dry_run=True)
        if not as_json:
            _tell(found)
        if dry_run:
            if as_json:
                print_json(found)
            return
        done = found
        is_too_large = max_bytes is not None and found.bytes_before > max_bytes
        if found.trajectories or found.spans or found.rewards or is_too_large:
            fresh = copy_beside(data.store)
            size = _kept_megabytes(found)
            bar = Progress(size, "MB (estimated)", tells_short=False)
            with watched(lambda: min(_megabytes(fresh), size - 1), bar, every_s=_LOOK_S):
                done = store.prune(before_ns=before_ns, max_bytes=max_bytes)
    if as_json:
        print_json(done)
        return
    click.echo(_counts(done, "gone"))
    if max_bytes is not None and (more := done.trajectories - found.trajectories) > 0:
        click.echo(f"{more} more than estimated: with the runs to keep, the file was larger than --max-size")
    if done.bytes_after is not None:
        click.echo(f"{size_text(done.bytes_before)} before, {size_text(done.bytes_after)} now")


def _kept_megabytes(found: Pruned) -> int:
    """The estimated size of the file: in proportion to the runs that are kept."""
    whole = max(found.trajectories + found.kept_trajectories, 1)
    return max(found.bytes_before * found.kept_trajectories // whole // _MEGA, 1)


def _megabytes(file: Path) -> int:
    """What is written of a store so far; 0 where it is another machine's."""
    return sum(one.stat().st_size for one in (file, file.with_name(file.name + ".wal")) if one.exists()) // _MEGA


def _tell(found: Pruned) -> None:
    """What is removed, by where it came from."""
    click.echo(_counts(found, "to go"))
    names = [one_line(source.name) for source in found.sources]
    room = max(map(len, names), default=0)
    for name, source in zip(names, found.sources, strict=True):
        days = (
            "without times" if is_undated(source.last_ns) else f"of {_day(source.first_ns)} to {_day(source.last_ns)}"
        )
        click.echo(f"  {name.ljust(room)}  {counts_text(source)} {days}")


def _counts(found: Pruned, verb: str) -> str:
    return f"{counts_text(found)} {verb}, {found.kept_trajectories} kept"


def _day(time_ns: int) -> str:
    return "?" if is_undated(time_ns) else datetime.fromtimestamp(time_ns / 1e9, UTC).date().isoformat()
