"""Settings of capture: the arguments of `init`, else the environment, else defaults.

| `arttrace.init(...)` | environment | default | meaning |
|---|---|---|---|
| `project` | `ARTTRACE_PROJECT` | `default` | the project's name, on every run |
| `dir` | `ARTTRACE_DIR` | `.arttrace` | the data directory |
| `capture_content` | `ARTTRACE_CAPTURE_CONTENT` | `full` | `full`, `redacted` (structure and lengths only) or `off` |
| `mask` | | none | a callable `(value, *, kind) -> value` over all content before it is written |
| `sample` | `ARTTRACE_SAMPLE` | `1` | the share of runs that is stored, 0 to 1; in code also a rule |
| `retain` | `ARTTRACE_RETAIN` | all | runs older than this go out of the local store: `30d`, `12h` |
| `retain_size` | `ARTTRACE_RETAIN_SIZE` | all | beyond this size its oldest runs go: `10GB`; `none` takes either back |
| `orphans` | `ARTTRACE_ORPHANS` | `record` | calls outside any trajectory: `record` or `ignore`; counted either way |
| `capture_http` | `ARTTRACE_CAPTURE_HTTP` | off | `1`: model calls of plain HTTP clients are recorded too |
| `http_spans` | `ARTTRACE_HTTP_SPANS` | off | `1`: tools' HTTP requests are recorded; `headers,bodies`: with these |
| `trainable` | `ARTTRACE_TRAINABLE` | none | base URLs whose answers are asked for token ids, commas between |
| `propagate` | `ARTTRACE_PROPAGATE` | none | hosts that receive the trajectory id: `host` or `host:port`, with commas |
| `endpoint` | `ARTTRACE_ENDPOINT` | none | base URL of a collector to ship to; after a comma, further receivers |
| `api_key` | `ARTTRACE_API_KEY` | none | the collector's bearer token |
| `receivers` | `OTEL_EXPORTER_OTLP_*` | none | OTLP receivers beside the store or the collector: URLs, `Receiver`s |
| `langfuse` | `ARTTRACE_LANGFUSE` | off | `1`: sent to the Langfuse project of `LANGFUSE_PUBLIC_KEY`, ... |
| | `ARTTRACE_OTLP` | | `0`: `OTEL_EXPORTER_OTLP_*` are not read; `1`: whoever else reads them |
| `arttrace.route(...)` | `ARTTRACE_ROUTE` | none | calls sent to a policy: `model=policy:latest@url`, commas between |
| | `ARTTRACE_POLICY_URL`, `ARTTRACE_POLICY_API_KEY` | none | where routes lead that name no server, and the key |
| | `ARTTRACE_POLICY_SAMPLING` | `request` | `policy`: calls are routed without what changes the sampling |
| | `ARTTRACE_DISABLED` | off | `1`: nothing is captured |
| | `ARTTRACE_CONTEXT` | none | the trajectory that this process belongs to; set by the process that started it |
| | `ARTTRACE_RAISE` | off | `1`: failures of arttrace are raised (its own tests) |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from arttrace.capture.base.guard import logger
from arttrace.capture.base.receiver import (
    Receiver,
    as_receiver,
    by_environment,
    collector,
    distinct,
    same,
    with_credentials,
)
from arttrace.capture.base.remote_context import of_process
from arttrace.capture.base.sample_rate import Sample, as_rate
from arttrace.capture.base.variables import unread_for_the_first_time
from arttrace.records.values.units import age_ns, size_bytes
from arttrace.system.addresses import is_http, without_login, written_plainly
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir, endpoints
from arttrace.wire.content import ContentMode, Mask

Orphans = Literal["record", "ignore"]
_T = TypeVar("_T", ContentMode, Orphans)
_Any = TypeVar("_Any")

NONE = "none"
"""The limit that takes one back."""

HTTP_PARTS = ("headers", "bodies")
"""What of a tool's HTTP requests is recorded where it is asked for."""
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_NAMES: dict[object, str] = {
    str: "text",
    bool: "True or False",
    os.PathLike: "a path",
    Callable: "a function",
    Iterable: "a list",
    Receiver: "an arttrace.Receiver",
}
"""What a setting of such a type is called in a message."""

MAX_BODY_BYTES = 64 << 20
"""Of one response no more than this many bytes are kept for decoding."""

MAX_WAITING_BYTES = 512 << 20
"""No more than this many bytes of calls, of what tools and agents were given and returned (over 1 KiB), and of bodies
of tools' requests wait in memory to be decoded and written."""

MAX_SPOOL_BYTES = 4 << 30
"""The spool never holds more than this; beyond it records are refused and counted."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How this process captures; the table above says what each field means."""

    data: DataDir
    project: str = "default"
    capture_content: ContentMode = "full"
    mask: Mask | None = field(default=None, repr=False)
    sample: Sample = field(default=1.0, repr=False)
    retain: str | None = None
    retain_size: str | None = None
    orphans: Orphans = "record"
    capture_http: bool = False
    http_spans: tuple[str, ...] = ()
    trainable: tuple[str, ...] = ()
    route: str = field(default="", repr=False)
    propagate: tuple[str, ...] = ()
    disabled: bool = False
    endpoint: str | None = None
    api_key: str | None = field(default=None, repr=False)
    receivers: tuple[Receiver, ...] = ()
    otel: Receiver | None = None
    otel_meant: bool = False

    @property
    def names_runs(self) -> bool:
        """Whether each span says of its run what Langfuse wants to know: not where a mode or a mask may hide it."""
        return self.mask is None and self.capture_content == "full" and self.scores_live

    @property
    def scores_live(self) -> bool:
        """Whether a receiver takes rewards as scores, and so wants to know the trace of each."""
        return any(one.spans == "langfuse" for one in self.receivers)

    @property
    def collector(self) -> Receiver | None:
        """What the outbox is shipped to."""
        if self.endpoint is None:
            return None
        found = collector(self.endpoint, self.api_key)
        return with_credentials(found, self.otel) if self.otel is not None and same(found, self.otel) else found

    @property
    def otel_beside(self) -> Receiver | None:
        """The receiver of OTEL_EXPORTER_OTLP_*, where it is none of the others."""
        others = [*self.receivers, *([collector(self.endpoint, None)] if self.endpoint is not None else [])]
        return None if self.otel is None or any(same(other, self.otel) for other in others) else self.otel

    @property
    def all_receivers(self) -> tuple[Receiver, ...]:
        """Whatever spans are sent to beside the collector."""
        return self.receivers if self.otel_beside is None else (*self.receivers, self.otel_beside)

    @property
    def content(self) -> bool:
        """Whether anything of what was said is kept."""
        return self.capture_content != "off"

    @classmethod
    def resolve(
        cls,
        *,
        project: str | None = None,
        dir: str | Path | None = None,
        capture_content: ContentMode | None = None,
        mask: Mask | None = None,
        sample: Sample | None = None,
        retain: str | None = None,
        retain_size: str | None = None,
        orphans: Orphans | None = None,
        capture_http: bool | None = None,
        http_spans: bool | Sequence[str] | None = None,
        trainable: Sequence[str] | None = None,
        propagate: Sequence[str] | None = None,
        endpoint: str | None = None,
        api_key: str | None = None,
        receivers: Sequence[Receiver | str] = (),
        langfuse: bool | None = None,
    ) -> Settings:
        """The arguments, else the environment, else the defaults.

        What cannot be read is logged by its name, and the rest counts. In its place the careful thing is taken: content
        off, orphans ignored, all runs stored; else what the environment or the default says.
        """
        project, dir = _typed("project", project, str), _typed("dir", dir, str, os.PathLike)
        endpoint, api_key = _typed("endpoint", endpoint, str), _typed("api_key", api_key, str)
        capture_http = _typed("capture_http", capture_http, bool)
        langfuse = _typed("langfuse", langfuse, bool)
        if _typed("mask", mask, Callable) is not mask:
            mask, capture_content = None, "off"  # a mask was wanted
        collector_url, further = endpoints(endpoint)
        otel, complaints = (
            by_environment(os.environ) if os.environ.get("ARTTRACE_OTLP", "").strip() != "0" else (None, [])
        )
        for name, remedy in unread_for_the_first_time(os.environ):
            logger.warning("arttrace: nothing reads %s. %s", name, remedy)
        for complaint in complaints:
            logger.warning("arttrace: %s", complaint)
        parent = of_process()  # inside a trajectory of another process its project and directory count
        data = DataDir.resolve(dir or (parent.dir if parent else None))
        if collector_url is not None and not collector(collector_url, None).is_reachable:
            logger.warning(
                "arttrace: endpoint: %.100r is not a URL of the form http://host:port; what is recorded waits in %s. "
                "Set ARTTRACE_ENDPOINT, or init(endpoint=...), to the collector's base URL",
                without_login(collector_url),
                data.outbox,
            )
        return cls(
            data=data,
            project=project or (parent.project if parent else None) or os.environ.get("ARTTRACE_PROJECT") or "default",
            capture_content=content_mode(capture_content, "ARTTRACE_CAPTURE_CONTENT"),
            mask=mask,
            sample=_sample(sample),
            retain=_limit(retain, "ARTTRACE_RETAIN", age_ns, "1h"),
            retain_size=_limit(retain_size, "ARTTRACE_RETAIN_SIZE", size_bytes, "10MB"),
            orphans=_word(orphans, "ARTTRACE_ORPHANS", get_args(Orphans), "record", "ignore"),
            capture_http=_flag("ARTTRACE_CAPTURE_HTTP") if capture_http is None else capture_http,
            http_spans=_http_spans(_typed("http_spans", http_spans, bool, str, Iterable)),
            trainable=_urls(_list("trainable", trainable, "ARTTRACE_TRAINABLE")),
            route=os.environ.get("ARTTRACE_ROUTE", ""),
            propagate=_hosts(_list("propagate", propagate, "ARTTRACE_PROPAGATE")),
            disabled=is_off(),
            endpoint=collector_url,
            api_key=api_key or os.environ.get("ARTTRACE_API_KEY") or None,
            receivers=distinct(
                [
                    *map(as_receiver, _each("receivers", receivers, str, Receiver)),
                    *map(Receiver, further),
                    *_langfuse(langfuse_is_wanted() if langfuse is None else langfuse),
                ]
            ),
            otel=otel,
            otel_meant=_flag("ARTTRACE_OTLP"),
        )


def content_mode(given: str | None, variable: str = "") -> ContentMode:
    """`given` as a mode, else the environment's, else "full"; off for a word that is no mode."""
    return _word(given, variable, get_args(ContentMode), "full", "off")


def _word(given: str | None, variable: str, words: tuple[_T, ...], default: _T, otherwise: _T) -> _T:
    said = given or os.environ.get(variable, "").strip().lower()
    if not said:
        return default
    if said not in words:
        logger.warning("arttrace: %s is not one of %s; using %s", f"{variable or 'it'}={said!r}", words, otherwise)
        return otherwise
    return words[words.index(said)]


def langfuse_receivers() -> list[Receiver]:
    """The Langfuse project of the environment, where ARTTRACE_LANGFUSE says that it is sent to."""
    return _langfuse(langfuse_is_wanted())


def langfuse_is_wanted() -> bool:
    """Whether ARTTRACE_LANGFUSE says that runs are sent to Langfuse as they end."""
    return _flag("ARTTRACE_LANGFUSE")


def _langfuse(wanted: bool) -> list[Receiver]:
    if not wanted:
        return []
    from arttrace.capture.base.langfuse_project import Connection

    try:
        return [Connection.resolve().receiver]
    except ArttraceError as error:
        logger.warning("arttrace: nothing is sent to Langfuse: %s", error)
        return []


def _sample(given: Sample | None) -> Sample:
    said = os.environ.get("ARTTRACE_SAMPLE", "").strip() or 1.0 if given is None else given
    if callable(said):
        return said
    try:
        return as_rate(said)
    except (TypeError, ValueError):
        logger.warning("arttrace: sample=%.100r is not a number from 0 to 1 and no function; every run is stored", said)
        return 1.0


def _limit(given: str | None, variable: str, read: Callable[[str], int], least: str) -> str | None:
    """A limit by which runs go without a request. One below `least` was meant otherwise: 6m are minutes."""
    said = (str(given or "") or os.environ.get(variable, "")).strip()
    try:
        if said and said.lower() != NONE and read(said) < read(least):
            raise ValueError(f"{said!r} is less than {least}")
    except ValueError as error:
        logger.warning("arttrace: %s: %s; nothing is removed from the store for it", variable, error)
        return None
    return said.lower() or None


def is_off() -> bool:
    """Whether the environment says that nothing is captured."""
    return _flag("ARTTRACE_DISABLED")


def _flag(variable: str) -> bool:
    said = os.environ.get(variable, "").strip().lower()
    if said and said not in (*_YES, *_NO):
        logger.warning("arttrace: %s=%.100r is neither 1 nor 0; it counts as 0", variable, said)
    return said in _YES


def _urls(given: Sequence[str]) -> tuple[str, ...]:
    """Those that are base URLs."""
    urls = []
    for said in given:
        if is_http(said):
            urls.append(written_plainly(said))
        else:
            message = "arttrace: trainable: %.100r is no URL of the form http://host:port/v1; it is left out"
            logger.warning(message, without_login(said))
    return tuple(urls)


def _hosts(given: Sequence[str]) -> tuple[str, ...]:
    """Those that are `host` or `host:port`, as requests are compared with them."""
    found = [_host(said.strip().lower()) for said in given]
    for said, host in zip(given, found, strict=True):
        if host is None:
            logger.warning("arttrace: propagate: %.100r is neither `host` nor `host:port`; it is left out", said)
    return tuple(filter(None, found))


def _host(said: str) -> str | None:
    """An IPv6 address without its brackets, which it needs where a port follows."""
    if said.count(":") > 1 and not said.startswith("["):
        said = f"[{said}]"
    try:
        parts = urlsplit(f"//{said}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or parts.netloc != said or set(said) & set("@ "):
        return None
    return host if port is None else f"{host}:{port}"


def _http_spans(given: bool | Sequence[str] | None) -> tuple[str, ...]:
    """What of a tool's requests is recorded: nothing, "requests" alone, or what is asked for beside."""
    if isinstance(given, bool):
        return ("requests",) if given else ()
    listed = _list("http_spans", given, "ARTTRACE_HTTP_SPANS")
    said = [part.strip().lower() for one in listed for part in one.split(",")]
    if len(said) == 1 and said[0] in (*_YES, *_NO):
        return ("requests",) if said[0] in _YES else ()
    asked = [one for one in HTTP_PARTS if one in said]
    if unknown := [one for one in said if one not in HTTP_PARTS]:
        logger.warning(
            "arttrace: http_spans has no %s: it is true or false, or names of %s; others are left out",
            ", ".join(map(repr, unknown)),
            ", ".join(HTTP_PARTS),
        )
    return ("requests", *asked) if asked else ()


def _list(name: str, given: Sequence[str] | None, variable: str) -> tuple[str, ...]:
    if given is not None:
        return tuple(_each(name, given, str))
    return tuple(filter(None, (item.strip() for item in os.environ.get(variable, "").split(","))))


def _typed(name: str, given: _Any, *kinds: Any) -> _Any | None:
    """The value passed to `init`; None, which is logged, if it is of none of these kinds."""
    if given is None or isinstance(given, kinds):
        return given
    expected = " or ".join(_NAMES.get(kind, kind.__name__) for kind in kinds)
    message = "arttrace: init(%s=...): %s is expected, not %s; it is not used, the other settings are"
    logger.warning(message, name, expected, _kind(given))
    return None


def _each(name: str, given: Any, *kinds: Any) -> list[Any]:
    """The items of a list passed to `init` that are of these kinds; a single item counts as a list."""
    if given is None or isinstance(given, kinds):
        return [] if given is None else [given]
    found = _typed(name, given, Iterable)
    return [one for one in found or () if _typed(name, one, *kinds) is not None]


def _kind(given: object) -> str:
    """Not the value: it may be a secret."""
    return f"of type {type(given).__name__}"
