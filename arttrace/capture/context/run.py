"""What the scopes of one trajectory in this process share: its id, tags and metadata, and what ends with it.

Each process that takes part in a trajectory has a state of its own; tags and metadata of the root span win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from opentelemetry import context as otel_context

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.values import json_object, json_text
from arttrace.capture.context.recorded_tools import RecordedTools
from arttrace.capture.export.open_span import Lasting
from arttrace.records import semconv
from arttrace.records.semconv import SESSION_KEYS, USER_KEYS
from arttrace.records.values.users_text import safe_text
from arttrace.wire.content import MAX_CONTENT_BYTES, ContentMode, ContentRules, Hidden

_recording = Guard("recording what a run was given")
_decode = msgspec.json.decode
_PROPAGATED = "langfuse.propagated."
"""Keys of OpenTelemetry's context by which Langfuse's SDK passes attributes of the trace to its spans."""
_MOST_CHARACTERS = 200  # of a value there


class Closable(Protocol):
    """Something that ends with the run at the latest."""

    def close(self, error: BaseException | None = None) -> None: ...


class RunState(msgspec.Struct, eq=False):
    """What the scopes of one trajectory in this process share."""

    id: str
    project: str
    scenario: str | None = None
    group: str | None = None
    group_is_computed: bool = False
    """By the user's code, from what the run was given."""
    tags: list[str] = []
    metadata: dict[str, msgspec.Raw] = {}
    metadata_was_cut: bool = False
    hidden: Hidden = msgspec.field(default_factory=Hidden)
    has_ended: bool = False
    """Whether this process's root has, which counts what ended before; what ends later counts for itself."""
    is_counted: bool = False
    """Whether the root has been written, in the background, with what it counts."""
    ended_spans: int = 0
    covered_calls: int = 0
    """Calls that only libraries' spans recorded; they are not among `ended_spans`, and known in the background only."""
    http_requests: int = 0
    """Requests of tools that were begun; their spans are not among `ended_spans`."""
    tools: RecordedTools | None = None
    """In a rollout, what its tools are answered with instead of being run."""
    unanswered: str | None = None
    """Why the last model call got no answer from its server: a run that then fails is not evidence about its agent."""
    open_library_scopes: dict[int, Closable] = {}
    """The open scopes of libraries' spans, by id(): one whose span is never ended ends with the run."""
    open_scopes: dict[int, Lasting] = {}
    """Those below this process's root that have not ended, by id(): what is open when the root ends is said to be."""
    is_rollout: bool = False
    """Whether somebody waits for what it records: sampling leaves none of these out."""
    interrupted: str | None = None
    """Why the run is none to be judged or learned from, however it ends."""
    warned_of_late_update: bool = False
    name: str | None = None
    """Where a receiver wants it on every span of the run, together with tags, session and user."""

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that every span of the run carries."""
        found = {semconv.TRAJECTORY_ID: self.id} if self.id else {}
        return found if self.name is None else {**found, **self._context(self.name)}

    def _context(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {semconv.LANGFUSE_TRACE_NAME: name}
        if self.tags:
            found[semconv.LANGFUSE_TRACE_TAGS] = list(self.tags)
        for attribute, keys in ((semconv.SESSION_ID, SESSION_KEYS), (semconv.USER_ID, USER_KEYS)):
            given = (self.metadata[key] for key in keys if key in self.metadata)
            value = next((decoded for raw in given if isinstance(decoded := _decode(raw), (str, int))), None)
            if value is not None:
                found[attribute] = str(value)
        return found

    def shared_with_langfuse(self, context: otel_context.Context) -> otel_context.Context:
        """Takes user, session and tags that were set for the trace in Langfuse's own SDK (`propagate_attributes`), if
        the run has none of its own, and returns the context in which that SDK finds the run's."""
        said = {
            own[-1]: value
            for own in (USER_KEYS, SESSION_KEYS)
            if isinstance(value := context.get(_PROPAGATED + own[-1]), str) and self.metadata.keys().isdisjoint(own)
        }
        tags = context.get(_PROPAGATED + "tags")
        new = [tag for tag in tags if tag not in self.tags] if isinstance(tags, list) else []
        if said or new:
            self.join(said, new)
        known = self._context("")
        for key, attribute in (("user_id", semconv.USER_ID), ("session_id", semconv.SESSION_ID)):
            if attribute in known and len(known[attribute]) <= _MOST_CHARACTERS:
                context = otel_context.set_value(_PROPAGATED + key, known[attribute], context)
        own_tags = [tag for tag in self.tags if len(tag) <= _MOST_CHARACTERS]
        return otel_context.set_value(_PROPAGATED + "tags", own_tags, context) if own_tags else context

    def part(self) -> RunState:
        """What this process does in a run that another one began."""
        return RunState(
            self.id, self.project, hidden=self.hidden, tools=self.tools, is_rollout=self.is_rollout, name=self.name
        )

    def writable(self, attributes: dict[str, Any], rules: ContentRules, mode: ContentMode) -> dict[str, Any]:
        """Attributes of a scope's span with all the calls that it counts, and with what may be written of a group's key
        that was made of content. It calls the user's mask: for the recorder's thread."""
        if semconv.TRAJECTORY_SPAN_COUNT in attributes and semconv.PROJECT in attributes:  # the root of this process
            attributes[semconv.TRAJECTORY_SPAN_COUNT] += self.covered_calls
            self.is_counted = True
        if self.group_is_computed and semconv.GROUP in attributes:
            attributes[semconv.GROUP] = rules.computed_group(attributes[semconv.GROUP], mode, self.hidden)
        return attributes

    def update(self, metadata: Mapping[str, Any] | None, tags: Sequence[str]) -> None:
        """Add metadata and tags, as they are now."""
        with _recording:
            for name, value in (metadata or {}).items():
                text, cut = json_text(value, MAX_CONTENT_BYTES)
                self.metadata[safe_text(name)] = msgspec.Raw(text.encode())
                self.metadata_was_cut |= cut
            for tag in map(safe_text, (tags,) if isinstance(tags, str) else tags or ()):
                if tag not in self.tags:
                    self.tags.append(tag)

    def join(self, metadata: Mapping[str, Any] | None, tags: Sequence[str]) -> None:
        """Add those of a further trajectory inside this one: what is said of the run already stays."""
        new = {name: value for name, value in (metadata or {}).items() if safe_text(name) not in self.metadata}
        self.update(new, tags)

    def tags_and_metadata(self) -> tuple[dict[str, Any], bool]:
        """The tags and metadata as attributes of a span, and whether metadata was cut to a bound."""
        attributes: dict[str, Any] = {}
        was_cut = False
        if self.tags:
            attributes[semconv.TAGS] = list(self.tags)
        if self.metadata:
            attributes[semconv.METADATA], cut = json_object(dict(self.metadata), MAX_CONTENT_BYTES)
            was_cut = cut or self.metadata_was_cut
        return attributes, was_cut


class RunOverrides:
    """Values that a rollout gives to the next trajectory that starts in its flow, whatever its decorator says."""

    def __init__(
        self,
        *,
        trajectory_id: str | None = None,
        scenario: str | None = None,
        group: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        tools: RecordedTools | None = None,
    ) -> None:
        self._values = (trajectory_id, scenario, group, dict(metadata or {}), tuple(tags))
        self._tools = tools
        self._taken = False

    def apply(self, run: RunState) -> None:
        """Give the values to `run`, once: a second trajectory of the same flow keeps its own."""
        if self._taken:
            return
        self._taken = True
        trajectory_id, scenario, group, metadata, tags = self._values
        run.id = trajectory_id or run.id
        run.scenario = scenario if scenario is not None else run.scenario
        if group is not None:
            run.group, run.group_is_computed = group, False
        run.update(metadata, tags)
        run.is_rollout = True
        run.tools = self._tools
