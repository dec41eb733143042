"""`/groups`: the groups, and one of them with its runs side by side."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from arttrace.store import TrajectorySummary
from arttrace.store.sql_text import listed
from arttrace.views.run_filter import is_group
from arttrace.views.web.handlers.request_fields import reader_of
from arttrace.views.web.handlers.runs import once_all_read
from arttrace.views.web.models.group_page import compare, group_row, group_rows, members
from arttrace.views.web.models.transcript import TranscriptEntry, transcript
from arttrace.views.web.rendering import page
from arttrace.views.web.store_reader import NotHere, StoreReader

MOST = 500
BESIDE = 4
"""Runs that are shown side by side at most."""


@once_all_read("Groups")
def show(request: Request) -> Response:
    """The list."""
    rows = group_rows(reader_of(request).runs())
    text = request.query_params.get("q", "").strip().lower()
    kind = request.query_params.get("teaches", "")
    found = [row for row in rows if text in f"{row.key} {row.name}".lower()]
    shown = [row for row in found if kind not in ("yes", "no") or row.teaches == (kind == "yes")]
    return page(
        "groups.html",
        section="groups",
        rows=shown[:MOST],
        matching=len(shown),
        total=len(rows),
        teaching=sum(row.teaches for row in found),
        silent=sum(not row.teaches for row in found),
        text=request.query_params.get("q", ""),
        kind=kind,
    )


@once_all_read("Groups")
def one(request: Request) -> Response:
    """One group."""
    reader, key = reader_of(request), request.query_params.get("key", "")
    runs = [run for run in reader.runs() if run.group == key] or [run for run in reader.runs() if is_group(key, run)]
    if not runs:
        raise NotHere("group", f"There is no group {key!r} here.", "The list of groups has those there are.")
    found = members(runs, reader.newest_steps(), _steps(reader, runs))
    wanted = request.query_params.getlist("run")
    chosen = [member for member in found if member.row.id in wanted][:BESIDE]
    if not chosen:
        chosen = [found[0], found[-1]] if len(found) > 1 else list(found)
    beside = [(member, _entries(reader, member.row.id)) for member in chosen]
    return page(
        "group.html",
        section="groups",
        group=group_row(runs[0].group, runs),
        members=found[:MOST],
        chosen={member.row.id for member in chosen},
        comparison=compare(beside),
        beside=BESIDE,
    )


def _entries(reader: StoreReader, id: str) -> tuple[TranscriptEntry, ...]:
    return reader.kept(id, "transcript", lambda: transcript(reader.trajectory(id)))


def _steps(reader: StoreReader, runs: list[TrajectorySummary]) -> dict[str, list[str]]:
    """The policy versions that were trained on each run."""
    named = listed(run.id for run in runs[:MOST])
    query = f"SELECT trajectory_id, policy || '@' || step FROM trained_on WHERE trajectory_id IN ({named})"  # noqa: S608
    found: dict[str, list[str]] = {}
    for id, version in reader.sql(query):
        found.setdefault(id, []).append(version)
    return found
