"""`/runs/ID`: one run as transcript, waterfall, message graph and spans, and what can be copied out of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from arttrace.records.trajectory import Trajectory
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import TrajectorySummary
from arttrace.store.access.late_spans import late
from arttrace.system.addresses import is_http
from arttrace.system.errors import ArttraceError
from arttrace.trajectories import sequences
from arttrace.trajectories.usage import used
from arttrace.views.costs.prices import load_prices
from arttrace.views.costs.usage import cost_of_run, cost_words
from arttrace.views.langfuse.state import links
from arttrace.views.run_filter import without_call
from arttrace.views.web.addresses import escaped
from arttrace.views.web.handlers.request_fields import integer, reader_of
from arttrace.views.web.models.blocks import EntryBlock, blocks
from arttrace.views.web.models.content import shown
from arttrace.views.web.models.copies import as_curl, as_json, as_markdown, fullest_first
from arttrace.views.web.models.histories import AgentGraph, graphs
from arttrace.views.web.models.run_list import run_row
from arttrace.views.web.models.run_page import (
    agent_rows,
    input_and_result,
    note_rows,
    problems,
    reward_rows,
    token_words,
)
from arttrace.views.web.models.transcript import TranscriptEntry, matching, transcript
from arttrace.views.web.models.waterfall import Bar, waterfall
from arttrace.views.web.rendering import page
from arttrace.views.web.store_reader import NotHere, StoreReader

ENTRIES, BARS, ROWS, SPANS = 40, 120, 80, 200
"""How many a block has, of each."""

SPAN_CHARACTERS, MOST_VERSIONS = 1_000_000, 20
"""What the page of a span holds of each of its versions, and how many of them."""

LARGE = 4000
"""Calls and tool calls of a run beyond which its page says first that it is being read."""

T = TypeVar("T")
Handler = Callable[[Request], Response]


def once_read(handler: Handler) -> Handler:
    """A handler that a large run reaches once it has been read; until then the page says what is going on."""

    @functools.wraps(handler)
    def opened(request: Request) -> Response:
        reader = reader_of(request)
        summary = reader.run(request.path_params["id"])
        return _opening(summary) if _takes_long(reader, summary) else handler(request)

    return opened


def _takes_long(reader: StoreReader, summary: TrajectorySummary) -> bool:
    return summary.calls + summary.tool_calls > LARGE and not reader.holds(summary.id, "transcript")


def _opening(summary: TrajectorySummary) -> Response:
    return page("run_opening.html", section="runs", row=run_row(summary))


def ready(request: Request) -> Response:
    """Reads a run, then lets its page ask for itself again."""
    _entries(reader_of(request), request.path_params["id"])
    return Response(headers={"hx-refresh": "true"})


def show(request: Request) -> Response:
    """The transcript; of a large run that was not read yet its first entries."""
    reader = reader_of(request)
    summary = reader.run(request.path_params["id"])
    if summary.id != request.path_params["id"]:
        asked = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/runs/{escaped(summary.id)}{asked}")
    text = request.query_params.get("q", "").strip()
    at = request.query_params.get("at", "")
    run = None
    if _takes_long(reader, summary):
        run = None if text or at else reader.beginning(summary)
        if run is None:
            return _opening(summary)
    entries = _entries(reader, summary.id) if run is None else transcript(run)[:ENTRIES]
    found = matching(entries, text) if text else entries
    number = int(at[1:]) if at[1:].isdecimal() and len(at) < 10 and not text else 0
    near = set(request.query_params.getlist("near"))
    seen = [number for number, entry in enumerate(found) if entry.same in near][:ENTRIES] if near else []
    loaded = {n - n % ENTRIES for n in seen} or {number - number % ENTRIES if number < len(found) else 0}
    return page(
        "run_transcript.html",
        **head(reader, summary, "transcript", run),
        text=text,
        total=len(entries),
        found=len(found),
        blocks=_blocks(len(found), ENTRIES, f"/rows/transcript/{escaped(summary.id)}", loaded, q=text),
        loaded={first: found[first : first + ENTRIES] for first in loaded},
        at=at,
        cut=any(part.beyond for one in entries for part in (*one.parts, *((one.result,) if one.result else ()))),
    )


def transcript_rows(request: Request) -> Response:
    """A block of the transcript."""
    reader, id = reader_of(request), request.path_params["id"]
    entries = _entries(reader, id)
    text = request.query_params.get("q", "").strip()
    return page("_entries.html", id=id, entries=_part(request, matching(entries, text) if text else entries, ENTRIES))


@once_read
def timeline(request: Request) -> Response:
    """The waterfall."""
    reader = reader_of(request)
    summary = reader.run(request.path_params["id"])
    bars = _bars(reader, summary.id)
    return page(
        "run_timeline.html",
        **head(reader, summary, "timeline"),
        total=len(bars),
        blocks=_blocks(len(bars), BARS, f"/rows/timeline/{escaped(summary.id)}"),
        bars=bars[:BARS],
        whole_ns=max(summary.end_ns - summary.start_ns, 1),
    )


def timeline_rows(request: Request) -> Response:
    """A block of the waterfall."""
    reader, id = reader_of(request), request.path_params["id"]
    return page("_bars.html", id=id, bars=_part(request, _bars(reader, id), BARS), first=integer(request, "from"))


@once_read
def graph(request: Request) -> Response:
    """The message graph."""
    reader = reader_of(request)
    summary = reader.run(request.path_params["id"])
    made = _graphs(reader, summary.id)
    wanted = request.query_params.get("agent", "")
    chosen = next((one for one in made if one.agent_id == wanted), made[0] if made else None)
    address = f"/rows/graph/{escaped(summary.id)}"
    return page(
        "run_graph.html",
        **head(reader, summary, "graph"),
        graphs=made[:200],
        chosen=chosen,
        blocks=_blocks(len(chosen.rows), ROWS, address, agent=chosen.agent_id) if chosen else (),
        rows=chosen.rows[:ROWS] if chosen else (),
    )


def graph_rows(request: Request) -> Response:
    """A block of the message graph."""
    reader, id = reader_of(request), request.path_params["id"]
    wanted = request.query_params.get("agent", "")
    chosen = next((one for one in _graphs(reader, id) if one.agent_id == wanted), None)
    rows = _part(request, chosen.rows if chosen else (), ROWS)
    return page("_graph_rows.html", id=id, chosen=chosen, rows=rows, first=integer(request, "from"))


def spans(request: Request) -> Response:
    """The spans as they came, in order of start."""
    reader = reader_of(request)
    summary = reader.run(request.path_params["id"])
    found = sorted(reader.spans(summary.id), key=lambda span: (span.start_ns, span.span_id))
    return page(
        "run_spans.html",
        **head(reader, summary, "spans"),
        total=len(found),
        blocks=_blocks(len(found), SPANS, f"/rows/spans/{escaped(summary.id)}"),
        spans=found[:SPANS],
    )


def span_rows(request: Request) -> Response:
    """A block of the spans."""
    reader, id = reader_of(request), request.path_params["id"]
    found = sorted(reader.spans(id), key=lambda span: (span.start_ns, span.span_id))
    return page("_span_rows.html", id=id, spans=_part(request, found, SPANS), first=integer(request, "from"))


def span(request: Request) -> Response:
    """One span as JSON, with every stored version of it, and its call as a command."""
    reader = reader_of(request)
    summary = reader.run(request.path_params["id"])
    span_id = request.path_params["span_id"]
    found = fullest_first(reader.versions(summary.id, span_id))
    if not found:
        raise NotHere("span", f"There is no span {span_id!r} in this run.")
    call = next((one.call for one in reader.trajectory(summary.id).calls if one.call.span_id == span_id), None)
    command = as_curl(call) if call is not None else ""
    return page(
        "run_span.html",
        **head(reader, summary, "spans"),
        span=found[0],
        versions=[shown("code", as_json(one), most=SPAN_CHARACTERS) for one in found[:MOST_VERSIONS]],
        count=len(found),
        curl=command if len(command) <= SPAN_CHARACTERS else "",
    )


def span_json(request: Request) -> Response:
    """One span as JSON, whole."""
    span_id = request.path_params["span_id"]
    found = fullest_first(reader_of(request).versions(request.path_params["id"], span_id))
    if not found:
        raise NotHere("span", f"There is no span {span_id!r} in this run.")
    return PlainTextResponse(as_json(found[0]), media_type="application/json")


def whole_json(request: Request) -> Response:
    """The run and its tokens, as `arttrace show --json` prints them."""
    run = reader_of(request).trajectory(request.path_params["id"])
    made, report = sequences(run)
    text = as_json({"trajectory": run, "tokens": report, "sequences": made})
    return PlainTextResponse(text, media_type="application/json")


def whole_markdown(request: Request) -> Response:
    """The transcript as Markdown."""
    reader = reader_of(request)
    summary = reader.run(request.path_params["id"])
    title = f"{run_row(summary).entry} {summary.id}"
    return PlainTextResponse(as_markdown(title, _entries(reader, summary.id)), media_type="text/markdown")


def changed(request: Request) -> Response:
    """Whether a run in progress has changed: 204 if not, 200 if its page is to be asked for again."""
    summary = reader_of(request).run(request.path_params["id"])
    return Response(status_code=204 if request.query_params.get("revision") == summary.revision else 200)


def head(reader: StoreReader, summary: TrajectorySummary, tab: str, begun: Trajectory | None = None) -> dict[str, Any]:
    """What the top of every page of a run shows. `begun` is what stands for a run that is not read as a whole yet."""
    run = reader.trajectory(summary.id) if begun is None else begun
    late_in = late(reader.store, [summary]).get(summary.id, ())
    given, result = input_and_result(run)
    entries = _entries(reader, summary.id) if begun is None else ()
    return {
        "section": "runs",
        "tab": tab,
        "row": run_row(summary),
        "run": run,
        "whole": begun is None,
        "reward": trajectory_reward(run),
        "id": summary.id,
        "rewards": reward_rows(run),
        "notes": note_rows(run),
        "error": "",
        "said": "",
        "agents": agent_rows(run),
        "problems": problems(run, entries, late_in, silent=without_call(summary)),
        "given": given,
        "result": result,
        "token_words": token_words(summary),
        "used": used(run) if begun is None else None,
        "cost": reader.kept(summary.id, "cost", lambda: _cost(reader, summary.id)),
        "elsewhere": [link for link in links(reader.store.data, summary.id) if is_http(link)],
    }


def _cost(reader: StoreReader, id: str) -> str:
    try:
        prices = load_prices()
    except ArttraceError as error:
        return error.message
    return cost_words(cost_of_run(reader.store, id, prices), prices)


def _entries(reader: StoreReader, id: str) -> tuple[TranscriptEntry, ...]:
    return _made(reader, id, "transcript", transcript)


def _bars(reader: StoreReader, id: str) -> tuple[Bar, ...]:
    return _made(reader, id, "waterfall", waterfall)


def _graphs(reader: StoreReader, id: str) -> tuple[AgentGraph, ...]:
    return _made(reader, id, "graphs", graphs)


def _made(reader: StoreReader, id: str, name: str, make: Callable[[Trajectory], T]) -> T:
    return reader.kept(id, name, lambda: make(reader.trajectory(id)))


def _part(request: Request, whole: Sequence[T], size: int) -> Sequence[T]:
    first = integer(request, "from")
    return whole[first : first + size]


def _blocks(count: int, size: int, address: str, loaded: Collection[int] = (0,), **more: str) -> tuple[EntryBlock, ...]:
    return blocks(count, size, address, loaded, more)
