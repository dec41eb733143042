"""What happens in a store, as it comes in: calls, tools, agents and runs that begin or end, and rewards."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from rich.text import Text

from arttrace.formats.imported_run import is_undated
from arttrace.records import semconv
from arttrace.store import AnyStore
from arttrace.store.rows.left_out import IS_MARK
from arttrace.store.rows.summary import TrajectorySummary, summarise
from arttrace.store.rows.view_parts.definition import BELONGS_TO, of_document
from arttrace.system.errors import StoreError
from arttrace.trajectories.decoding.attribute_values import from_json
from arttrace.views.labels import entry_name, json_text, one_line, printable
from arttrace.views.run_filter import RunFilter
from arttrace.views.timeline import broken_off, tokens_used

_REMEMBERED = 100_000
_HELD_BACK = 10_000
_AT_ONCE = 5_000
_MOST_TEXT = 2_000
_DELIVERED_WITHIN_NS = 60_000_000_000
_STYLES = {"run": "bold", "agent": "blue", "tool": "yellow", "call": "green", "reward": "magenta"}

_KINDS: Final = {
    **dict.fromkeys(semconv.CALL_OPERATIONS, "call"),
    semconv.OPERATION_EXECUTE_TOOL: "tool",
    semconv.OPERATION_INVOKE_AGENT: "agent",
}
_COLUMNS: Final = (
    "trace_id, span_id, run, operation, name, start_ns, end_ns, error, entry, model, policy_version, input_tokens, "
    "output_tokens, arrived_ns, answers, agent, tool, passed, returned, arguments, result, interrupted"
)
_SPANS: Final = f"""SELECT s.trace_id, s.span_id,
        {BELONGS_TO} AS run,
        operation, name, start_ns, end_ns, error, entry, model, policy_version, input_tokens, output_tokens, arrived_ns,
        {of_document(semconv.OUTPUT_MESSAGES, of="s.")} AS answers, {of_document(semconv.AGENT_NAME)} AS agent,
        {of_document(semconv.TOOL_NAME)} AS tool, {of_document(semconv.TOOL_CALL_ARGUMENTS)} AS passed,
        {of_document(semconv.TOOL_CALL_RESULT)} AS returned, {of_document(semconv.ENTRY_ARGUMENTS)} AS arguments,
        {of_document(semconv.ENTRY_RESULT)} AS result, {of_document(semconv.INTERRUPTED)} AS interrupted
    FROM span_records s LEFT JOIN placed_spans p ON p.trace_id = s.trace_id AND p.span_id = s.span_id
    WHERE arrived_ns BETWEEN {{since}} AND {{until}} AND operation IN {tuple(_KINDS)} AND NOT (s.{IS_MARK})
    ORDER BY arrived_ns, CASE WHEN end_ns > 0 THEN end_ns ELSE start_ns END"""  # noqa: S608
_REWARDS: Final = """SELECT id, trajectory_id, name, source, value, explanation, time_ns FROM reward_records
    WHERE time_ns BETWEEN {since} AND {until} AND NOT contains(document, '"counts":false') ORDER BY time_ns"""
_UNTIL: Final = """SELECT max(moment), count(*) FROM (
    SELECT {column} AS moment FROM {table} WHERE {column} > {since} ORDER BY {column} LIMIT {limit})"""
_EVER: Final = (1 << 63) - 1


class RunEvent(msgspec.Struct, frozen=True):
    """Something that happened in `run` at `time_ns`. `kind` is run, agent, call, tool or reward; `ended` is False where
    it has only begun. `name` is the entry, the agent, the model (or the policy's version), the tool or the reward's
    name; `text` what was answered, passed and returned, or the explanation; `seconds` None where it has not ended, or
    was imported without times."""

    time_ns: int
    run: str
    kind: str
    name: str
    ended: bool = True
    text: str = ""
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    value: float | None = None
    trace_id: str = ""
    span_id: str = ""


class Events:
    """What is new in a store since it was last asked; each event once. Of much, `new` returns the first some thousands,
    and `more` says so."""

    def __init__(
        self, store: AnyStore, since_ns: int | None, *, run: str | None = None, wanted: RunFilter | None = None
    ) -> None:
        """`since_ns` None: from now on, whatever the time is where the store is. `run` is the one run whose events are
        wanted, `wanted` what runs must be. An event of a run of which too little is known yet waits until it is."""
        self._store = store
        self._spans_since = _after_the_last(store) if since_ns is None else since_ns
        self._since = self._rewards_since = time.time_ns() if since_ns is None else since_ns
        self._run = run
        self._wanted = wanted or RunFilter()
        self._last: set[tuple[str, ...]] = set()  # what came in at `_spans_since`, which is asked for again
        self._seen: OrderedDict[tuple[str, ...], None] = OrderedDict()
        self._fits: OrderedDict[str, bool] = OrderedDict()
        self._waiting: list[RunEvent] = []
        self.more = False

    def new(self) -> list[RunEvent]:
        """The events that came since, in the order in which they came. Raises StoreError."""
        self._store.ingest_spool()
        self.more = False
        fresh = [*self._waiting, *self._of_spans(), *self._of_rewards()]
        self._waiting = []
        shown: list[RunEvent] = []
        asked: dict[str, bool | None] = {}
        for event in fresh:
            if self._run is not None and event.run != self._run:
                continue
            if event.run not in asked:
                asked[event.run] = self._is_wanted(event.run)
            fits = asked[event.run]
            if fits is None and len(self._waiting) < _HELD_BACK:
                self._waiting.append(event)
            elif fits:
                shown.append(event)
        return shown

    def _is_wanted(self, run: str) -> bool | None:
        """None where the run's entry, or what stands in its place, has not come yet."""
        if not self._wanted:
            return True
        if run not in self._fits:
            summary = _summary(self._store, run)
            if summary is None:
                return None
            self._fits[run] = self._wanted.matches(summary)
            _forget(self._fits)
        return self._fits[run]

    def _of_spans(self) -> Iterator[RunEvent]:
        until = self._until("span_records", "arrived_ns", self._spans_since)
        _, rows = self._store.sql(_SPANS.format(since=self._spans_since, until=until))
        for row in rows:
            one = dict(zip(_COLUMNS.split(", "), row, strict=True))
            key = (one["trace_id"], one["span_id"], str(one["end_ns"] > 0))
            if one["arrived_ns"] > self._spans_since:
                self._spans_since, self._last = one["arrived_ns"], set()
            elif key in self._last:
                continue
            if one["run"] is not None:
                self._last.add(key)
                if self._is_new(key):
                    yield _event(one)
        if until != _EVER:
            self.more = True
            if until > self._spans_since:  # the last of them are of no kind that is shown
                self._spans_since, self._last = until, set()

    def _of_rewards(self) -> Iterator[RunEvent]:
        since = max(self._since, self._rewards_since - _DELIVERED_WITHIN_NS)  # they come in later than they are given
        now_ns = time.time_ns()  # a clock that is ahead of this one hides nothing
        until = self._until("reward_records", "time_ns", self._rewards_since)
        if until > now_ns:
            until = _EVER
        _, rows = self._store.sql(_REWARDS.format(since=since, until=until))
        for id, run, name, source, value, explanation, time_ns in rows:
            self._rewards_since = max(self._rewards_since, min(time_ns, now_ns))
            if self._is_new((id, str(time_ns))):
                text = f"{source}: {explanation}" if explanation else source
                yield RunEvent(time_ns, run, "reward", name, text=text[:_MOST_TEXT], value=value)
        if until != _EVER:
            self.more = True
            self._rewards_since = max(self._rewards_since, until)

    def _until(self, table: str, column: str, since: int) -> int:
        """Up to where is read now: what came at one moment is read together, of more only the first."""
        query = _UNTIL.format(table=table, column=column, since=since, limit=_AT_ONCE)
        [(until, count)] = self._store.sql(query)[1]
        return _EVER if count < _AT_ONCE else int(until)

    def _is_new(self, key: tuple[str, ...]) -> bool:
        if key in self._seen:
            return False
        self._seen[key] = None
        _forget(self._seen)
        return True


def _after_the_last(store: AnyStore) -> int:
    [(last_ns,)] = store.sql("SELECT max(arrived_ns) FROM span_records")[1]
    return 0 if last_ns is None else int(last_ns) + 1


def _forget(kept: OrderedDict[Any, Any]) -> None:
    while len(kept) > _REMEMBERED:
        kept.popitem(last=False)


def _summary(store: AnyStore, run: str) -> TrajectorySummary | None:
    try:
        found = store.trajectory(run)
    except StoreError:
        return None
    root = found.agents[0]
    has_begun = found.entry or found.entry_name or not (root.inferred or root.placeholder) or not found.incomplete
    return summarise(found) if found.id == run and has_begun else None


def _event(one: dict[str, Any]) -> RunEvent:
    kind, ended = _KINDS[one["operation"]], one["end_ns"] > 0
    name, text = one["policy_version"] or one["model"] or "", _answers(one["answers"])
    if one["entry"] is not None:
        kind, name = "run", one["entry"]
        text = one["result"] if ended and one["result"] is not None else one["arguments"] or ""
    elif kind == "agent":
        name, text = one["agent"] or one["name"], ""
    elif kind == "tool":
        passed, returned = one["passed"] or "", one["returned"]
        name, text = one["tool"] or one["name"], f"({passed})" + ("" if returned is None else f" -> {returned}")
    has_seconds = ended and not is_undated(one["start_ns"])
    return RunEvent(
        time_ns=one["end_ns"] if ended else one["start_ns"],
        run=one["run"],
        kind=kind,
        name=name,
        ended=ended,
        text=text[:_MOST_TEXT],
        seconds=max(0.0, (one["end_ns"] - one["start_ns"]) / 1e9) if has_seconds else None,
        input_tokens=one["input_tokens"],
        output_tokens=one["output_tokens"],
        error=one["error"] or (broken_off(one["interrupted"]) if kind == "call" else "") or None,
        trace_id=one["trace_id"],
        span_id=one["span_id"],
    )


def _answers(text: str | None) -> str:
    """What a call answered, from the JSON of its messages."""
    said: list[str] = []
    found = from_json(text or "")
    for answer in found if isinstance(found, list) else ():
        parts = answer.get("parts") if isinstance(answer, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if not isinstance(part, dict):
                continue
            if part.get("type") == "tool_call":
                said.append(f"calls {part.get('name')}({json_text(part.get('arguments'))})")
            elif part.get("type") in ("text", "reasoning"):
                said.append(json_text(part.get("content") or ""))
            else:
                said.append(f"[{part.get('type', 'other')}]")
    return " ".join(said)


def line(event: RunEvent, run: str, clock: str) -> Text:
    """An event in one line; `run` is what its run is called, `clock` the time of day."""
    text = Text.assemble((f"{clock} {printable(run)} ", "dim"), (f"{event.kind:6} ", _STYLES.get(event.kind, "")))
    text.append(one_line(entry_name(event.name) if event.kind == "run" else event.name, 80))
    if not event.ended:
        text.append(" begins", style="yellow")
    facts = [] if event.seconds is None else [f"{event.seconds:.2f} s"]
    if used := tokens_used(event.input_tokens, event.output_tokens):
        facts.append(used.replace("→", "->"))
    if facts:
        text.append(f" [{', '.join(facts)}]", style="dim")
    if event.value is not None:
        text.append(f" {event.value:.3f}", style="magenta")
    if event.error is not None:
        text.append(f" failed: {one_line(event.error)}", style="red")
    if event.text:
        text.append(f" {one_line(event.text)}")
    return text
