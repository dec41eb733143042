"""`arttrace group`: stored runs grouped by another criterion than their own, which can be undone."""

from __future__ import annotations

import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import json_option, store_option
from arttrace.commands.shared.progress import Progress
from arttrace.commands.shared.run_filters import run_filters
from arttrace.records.group import Grouping
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.store import AnyStore, open_store
from arttrace.store.bounded_parts import batched
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import BY, group_key, keys_by, own_key
from arttrace.views.labels import one_line
from arttrace.views.run_filter import RunFilter, matching_pages

_READ_AT_ONCE, _AT_ONCE = 500, 1000
_SHOWN = 20


@click.command("group")
@click.option("--by", metavar="|".join(BY), help="What runs of one group have in common.")
@click.option("--undo", is_flag=True, help="Go back to the runs' own groups.")
@run_filters
@click.option("--dry-run", is_flag=True, help="Only print what would be joined.")
@json_option
@store_option
def command(by: str | None, undo: bool, dry_run: bool, as_json: bool, data: DataDir, wanted: RunFilter) -> None:
    """Group stored runs by another criterion than their own, so that they can be compared.

    \b
    --by entry            the entry point and its arguments, whatever path or module loaded it: joins what older
                          versions recorded under several names; a group or scenario that your code named stays
    --by input            the first message of the user
    --by metadata.NAME    a value of the runs' metadata, such as metadata.task_id
    --by argument.NAME    a value of the entry point's arguments
    --by tag              all tags of the run together
    --by tag.NAME         its tags of the form NAME:... or NAME=...

    A run without such a value keeps its group. Nothing that was recorded changes: a run's last grouping counts
    everywhere, in `ls`, `score`, `train` and SQL, and `--undo` removes it. Later runs have their own group; set it with
    `scenario=` or `group=`.
    """
    if (by is None) == (not undo):
        raise click.UsageError(f"say what to group by: --by {' | '.join(BY)}; or --undo")
    with open_store(data) as store:
        before: dict[str, str] = {}
        own: dict[str, str | None] = {}

        def noted() -> Iterator[Trajectory]:
            for run in _runs(store, wanted):
                before[run.id], own[run.id] = group_key(run), own_key(run)
                yield run

        try:
            found = keys_by(by or "entry", noted())
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--by") from error
        if wanted and not before:
            raise ArttraceError("No run matches: nothing is grouped.", "`arttrace ls` takes the same conditions.")
        found = own if by is None else found
        after = {id: found[id] or key for id, key in before.items()}
        changed = {id: None if key == own[id] else key for id, key in after.items() if key != before[id]}
        if not dry_run:
            _store(store, by or "own", changed)
    without = sum(found[id] is None for id in before)
    if as_json:
        print_json(_document(before, after, without))
    else:
        _show(by, before, after, without, dry_run)


def _runs(store: AnyStore, wanted: RunFilter) -> Iterator[Trajectory]:
    """The stored runs that match, a page in memory at a time."""
    ids = {run.id: None for page in matching_pages(store, wanted) for run in page}
    bar = Progress(len(ids), "runs read", tells_short=False)
    done = 0
    for some in batched(ids, _READ_AT_ONCE):
        yield from store.trajectories(ids=some)
        done += len(some)
        bar(done)


def _store(store: AnyStore, by: str, keys: Mapping[str, str | None]) -> None:
    now, items = time.time_ns(), sorted(keys.items())
    for start in range(0, len(items), _AT_ONCE):
        some = dict(items[start : start + _AT_ONCE])
        store.append([Grouping(id=secrets.token_hex(16), by=by, keys=some, time_ns=now)])


def _joined(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, int, Sequence[str]]]:
    """The groups that changed: their key, how many runs they have, and the groups that these had."""
    members: defaultdict[str, list[str]] = defaultdict(list)
    for id, key in after.items():
        members[key].append(id)
    for key, ids in sorted(members.items()):
        earlier = [name for name, _ in Counter(before[id] for id in ids).most_common()]
        if earlier != [key]:
            yield key, len(ids), earlier


def _document(before: Mapping[str, str], after: Mapping[str, str], without: int) -> dict[str, Any]:
    return {
        "runs": len(after),
        "groups_before": len({*before.values()}),
        "groups": len({*after.values()}),
        "without_key": without,
        "changed": [
            {"key": key, "runs": runs, "groups_before": list(earlier)} for key, runs, earlier in _joined(before, after)
        ],
    }


def _show(by: str | None, before: Mapping[str, str], after: Mapping[str, str], without: int, dry_run: bool) -> None:
    changed = list(_joined(before, after))
    verb = "would be" if dry_run else "are"
    groups = quantity(len({*after.values()}), "group")
    click.echo(
        f"{quantity(len(after), 'run')} {verb} in {groups}{'' if by is None else f' by {by}'}; "
        f"{len({*before.values()})} before."
    )
    joined = sorted((one for one in changed if len(one[2]) > 1), key=lambda one: (-len(one[2]), -one[1], one[0]))
    for key, runs, earlier in joined[:_SHOWN]:
        names = ", ".join(_short(name) for name in earlier[:4]) + (", ..." if len(earlier) > 4 else "")
        click.echo(f"  {_short(key)}: {quantity(runs, 'run')}, joined from {len(earlier)} groups: {names}")
    if rest := len(changed) - len(joined[:_SHOWN]):
        noun = "group has" if rest == 1 else "groups have"
        click.echo(f"  {rest} {'more ' if joined else ''}{noun} another key (--json lists all).")
    if without:
        click.echo(f"  {quantity(without, 'run')} without {by}: the group stays as it was.")
    if by is not None and changed and not dry_run:
        click.echo("`arttrace group --undo` undoes this.")


def _short(key: str) -> str:
    return one_line(key, 60)
