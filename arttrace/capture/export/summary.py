"""The one line at the end of `arttrace run`: what was captured, and what was seen and not captured.

Each process of the program adds its numbers to one file, whose path is in the environment, as it goes: a signal may end
it any moment. The first of them, which the others descend from, adds it all up when it ends, and leaves the line in the
data directory for who asks later.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.settings import is_off
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.span import SpanRow
from arttrace.records.values.units import quantity
from arttrace.system.paths import LAST_RUN
from arttrace.system.processes import tell

VARIABLE = "ARTTRACE_TALLY"
_OWNER = "ARTTRACE_TALLY_OWNER"
_MAX_KINDS = 20
CLIENTS = "openai, anthropic, google-genai, mistralai, ollama, boto3, litellm, groq and others made as openai's"
"""The packages whose calls are captured without a setting."""
BY_A_SETTING = "ARTTRACE_CAPTURE_HTTP=1 captures them"
BY_NONE = (
    "no setting captures them: they are in another protocol than OpenAI's, Anthropic's, Gemini's, Ollama's or "
    "Bedrock's Converse"
)
BY_A_SOCKET = "no setting captures them: by WebSocket arttrace reads the Responses API by `websockets` alone"
_LATER = "no setting captures them: their answers come later, by other requests"
BY_A_PROGRAM = (
    "no setting captures them: a program of its own calls the model, and has not written down for arttrace what it "
    "sent; `arttrace import` reads its session files"
)
_UNREAD = "no setting captures them: arttrace does not read this API"
_BY_MEDIA = "no setting captures them: what is said comes by another connection"
_BY_THE_SERVICE = "no setting captures them: the service runs the agent, and calls the model itself"
_ELSEWHERE = "other addresses"
# Model APIs that are none of those, or may be: Cohere's, Bedrock, other models at Vertex AI, what is at Ollama's paths.
_OTHERS = re.compile(
    r"/api/(chat|generate)|/v\d/chat|/model/.+/(invoke|converse)[a-z-]*"
    r"|/publishers/[^/]+/models/(?!count-tokens:)[^/]+:(predict|(stream)?rawpredict)\Z",
    re.IGNORECASE,
)
_OTHER_WAYS: tuple[tuple[re.Pattern[str], str], ...] = (
    # OpenAI's (at Azure too), Anthropic's, Gemini's and Bedrock's batches, the runs of OpenAI's assistants and
    # evaluations, and Anthropic's dreams: not other people's.
    (
        re.compile(
            r"/(v1|openai)(/messages)?/batches$|/(v1|openai)/threads(/[^/]+)?/runs$|/(v1|openai)/evals/[^/]+/runs$"
            r"|anthropic\.com/v1/dreams$|:(batchGenerate|asyncBatchEmbed)Content$|/locations/[^/]+/batchPredictionJobs$"
            r"|bedrock[^/]*/(model-invocation-job|async-invoke)$"
        ),
        _LATER,
    ),
    # Agents that OpenAI, Anthropic or Amazon runs; a path as of the latter two may be anybody's.
    (
        re.compile(
            r"/(v1|openai)/agents/(sessions(/[^/]+/events)?|automations/[^/]+/invocations)$"
            r"|anthropic\.com/v1/(sessions(/[^/]+/events)?|deployments/[^/]+/run)$"
            r"|mistral\.ai/v1/conversations(/[^/]+(/restart)?)?$"
            r"|/agents/[^/]+/agentAliases/[^/]+/sessions/[^/]+/text$|/retrieveAndGenerate(Stream)?$"
            r"|bedrock-agent-runtime[^/]*/(agents/[^/]+|flows/[^/]+/aliases/[^/]+(/executions)?)$"
        ),
        _BY_THE_SERVICE,
    ),
    (
        re.compile(
            r"/(v1|openai)/(decisions|responses/compact|systemone)$"
            r"|(googleapis\.com/v1|/v1(alpha|beta)\d*)/(projects/.*/)?(interactions|decisions)$"
        ),
        _UNREAD,
    ),
    (
        re.compile(r"/(v1|openai)/(live/sessions(/[^/]+/(accept|fork))?|realtime/calls(/[^/]+/accept)?)$"),
        _BY_MEDIA,
    ),
)
"""What asks a model and is in no protocol that is read: by host and path, with why."""
_ID = re.compile(  # each has one of its own
    r"/(threads|evals|sessions|automations|deployments|calls|conversations)/[^/]+(?=/|\Z)"
)
_SOCKETS = re.compile(r"/(v1|openai)((/.*)?/(realtime|responses)|/live)\b|bidigeneratecontent", re.IGNORECASE)
_CALLS = (
    semconv.OPERATION_CHAT,
    semconv.OPERATION_TEXT_COMPLETION,
    semconv.OPERATION_GENERATE_CONTENT,
    semconv.OPERATION_EMBEDDINGS,
)
_tallying = Guard("counting what was captured", background=True)


class Tally(msgspec.Struct):
    """The numbers of one process, or of all."""

    runs: int = 0
    calls: int = 0
    lost_runs: int = 0
    lost_calls: int = 0
    """Of these, what could not be written."""
    left_out: int = 0
    passed: dict[str, int] = {}
    covered: dict[str, int] = {}
    """Of those that passed, the ones that were of a call recorded by other means; counted in the background."""
    routes: set[str] = set()
    used: set[str] = set()

    def line(self, data: str) -> str:
        """The lines that are printed for a person."""
        runs, calls = self.runs - self.lost_runs, self.calls - self.lost_calls
        are_lost = self.lost_runs > 0 or self.lost_calls > 0
        if runs or calls:
            said = [f"{_runs_and_calls(runs, calls)} captured in {data}"]
        elif self.left_out or are_lost:
            said = [f"nothing was captured in {data}"]
        elif is_off():
            said = ["nothing was captured: ARTTRACE_DISABLED is set"]
        else:
            said = [f"nothing was captured: arttrace saw no model call by {CLIENTS}"]
        if are_lost:
            said.append(f"{_runs_and_calls(self.lost_runs, self.lost_calls)} could not be written and are lost")
        if self.left_out:
            said.append(f"{quantity(self.left_out, 'run')} left out by sampling")
        left = {what: count - self.covered.get(what, 0) for what, count in sorted(self.passed.items())}
        missed = [f"not captured: {quantity(count, 'request')} to {what}" for what, count in left.items() if count > 0]
        said += missed
        if runs and not self.calls and not missed:
            said.append("`arttrace doctor -- PROGRAM` says what is captured of a program")
        unused = ", ".join(sorted(self.routes - self.used))
        return "; ".join([*said, *([f"no call matched the route {unused}"] if unused else [])])

    def add(self, more: Tally) -> None:
        """Count what another one counted."""
        self.runs, self.calls = self.runs + more.runs, self.calls + more.calls
        self.lost_runs, self.lost_calls = self.lost_runs + more.lost_runs, self.lost_calls + more.lost_calls
        self.left_out += more.left_out
        for counts, others in ((self.passed, more.passed), (self.covered, more.covered)):
            for what, count in others.items():
                counts[what] = counts.get(what, 0) + count
        self.routes |= more.routes
        self.used |= more.used


def _runs_and_calls(runs: int, calls: int) -> str:
    return f"{quantity(runs, 'run')} and {quantity(calls, 'model call')}"


_tally = Tally()
_path: Path | None = None


def begin() -> None:
    """Count in this process, where `arttrace run` asks for it."""
    global _path
    path = os.environ.get(VARIABLE)
    if path and _path is None:
        _path = Path(path)
        if not os.environ.get(_OWNER, "").endswith(f" {path}"):  # else a process above this one counts
            os.environ[_OWNER] = f"{os.getpid()} {path}"
        atexit.register(end)  # before all others of arttrace: runs after them
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forget)


def is_on() -> bool:
    """Whether this process counts."""
    return _path is not None


def ended(what: Any, attributes: dict[str, Any]) -> None:
    """A span has ended."""
    if _path is not None:
        _tally.calls += _is_call(attributes)
        _tally.runs += bool(getattr(what, "is_root", False))


def is_call(record: Record) -> bool:
    """Whether a record is a model call that has ended."""
    return isinstance(record, SpanRow) and record.end_ns > 0 and _is_call(record.attributes)


def lost(record: Record) -> None:
    """What had ended could not be written."""
    if _path is not None and isinstance(record, SpanRow) and record.end_ns > 0:
        _tally.lost_calls += _is_call(record.attributes)
        _tally.lost_runs += semconv.ENTRY in record.attributes


def dropped(*, runs: int = 0, calls: int = 0) -> None:
    """What had ended was left out by sampling, and so not captured."""
    if _path is not None:
        _tally.calls -= calls
        _tally.runs -= runs
        _tally.left_out += runs


def _is_call(attributes: Mapping[str, Any]) -> bool:
    return attributes.get(semconv.OPERATION_NAME) in _CALLS


def passed(host: str | None, path: str, why: str) -> str | None:
    """A POST went out that no call was recorded of, and what the line names it by; None for one to no model API. `why`
    is one of those above; by a setting only what is in a protocol that is read is captured."""
    address = f"{host or ''}{path}"
    named = next((why for paths, why in _OTHER_WAYS if paths.search(address)), None) if why == BY_NONE else None
    if named is not None:
        why, path = named, _ID.sub(r"/\1/*", path)
    elif why == BY_A_SOCKET:
        if not _SOCKETS.search(path):
            return None
    elif why not in (BY_A_SETTING, BY_A_PROGRAM) and not _is_of_another_api(path):
        return None
    what = f"{host or ''}{path[-80:]} ({why})"
    if what not in _tally.passed and len(_tally.passed) >= _MAX_KINDS:
        what = f"{_ELSEWHERE} ({why})"
    _tally.passed[what] = _tally.passed.get(what, 0) + 1
    return what


def recorded_after_all(what: str, count: int) -> None:
    """So many of the requests that had `passed` were of a call that has been recorded by other means; to be said in
    the background alone."""
    _tally.covered[what] = _tally.covered.get(what, 0) + count


def write_on() -> None:
    """The same where anything was counted."""
    if _path is not None and _tally != Tally():
        write()


def matched(route: str) -> None:
    """A route was taken."""
    if _path is not None and route not in _tally.used:
        _tally.used.add(route)


def write() -> None:
    """Add to the file what this process has counted since the last time; where that fails it is kept for the next."""
    if _path is None:
        return
    counted = _tally
    with _tallying:
        _forget()
        routing = sys.modules.get("arttrace.capture.calls.routing")
        counted.routes = set() if routing is None else routing.known()
        line = b"\n" + msgspec.json.encode(counted)  # behind a line that a full disk cut, too
        try:
            _path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                if os.write(handle, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(_path))
            finally:
                os.close(handle)
        except OSError:
            _tally.add(counted)
            raise


def end() -> None:
    """Write what was counted, and print the line in the process that `arttrace run` started; once."""
    with _tallying:
        write()
        if _path is None or os.environ.get(_OWNER) != f"{os.getpid()} {_path}":
            return
        total, decoder = _tally, msgspec.json.Decoder(Tally)  # what could not be added to the file
        _forget()
        for line in _path.read_bytes().split(b"\n") if _path.exists() else ():
            with contextlib.suppress(msgspec.DecodeError):
                total.add(decoder.decode(line))
        os.environ.pop(_OWNER)
        said = total.line(str(_path.parent))
        tell(f"arttrace: {said}")
        _path.unlink(missing_ok=True)
        handle = os.open(_path.parent / LAST_RUN, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(said)


def _forget() -> None:
    global _tally
    _tally = Tally()


@lru_cache(maxsize=256)
def _is_of_another_api(path: str) -> bool:
    return _OTHERS.search(path) is not None
