"""Recording of calls that pass through: the bytes are kept while they pass, decoded and written by a thread.

The spans are those that arttrace.capture makes inside a Python process; they go to the spool of the data directory,
which whoever owns the store takes in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import msgspec
from starlette.types import Message, Send

from arttrace.records import semconv
from arttrace.records.record import Record, encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.system.errors import ServingError
from arttrace.system.journal import JournalWriter
from arttrace.wire import Ending, Exchange, decode
from arttrace.wire.content import MAX_CONTENT_BYTES, ContentMode, ContentRules, mode_of, secrets
from arttrace.wire.exchange import KEPT_RESPONSE_HEADERS
from trainer.gateway.errors import Refusal
from trainer.gateway.recording.identity import CallOwner
from trainer.gateway.recording.open_runs import OpenRuns
from trainer.gateway.recording.reward_times import RewardTimes
from trainer.gateway.recording.trajectories import SCOPE_NAME, EndOrder, EndReport, RewardOrder, Trajectories
from trainer.output.log import Problem

MAX_ANSWER_BYTES = 64 << 20
"""Of one answer no more than this is kept for decoding."""

MAX_WAITING_BYTES = 512 << 20
"""No more bytes than this wait to be decoded and written; further calls are refused, and counted."""

MAX_SPOOL_BYTES = 4 << 30
_SYNC_INTERVAL_S = 1.0
_REST_S = 0.05  # calls are decoded some at a time: a thread that wakes for each would fight the event loop
_KEPT_HEADERS = frozenset(name.encode() for name in KEPT_RESPONSE_HEADERS)
_ERROR = 2

Headers = Sequence[tuple[bytes, bytes]]
Job = Callable[[], None]
Say = Callable[[str], None]


class GatewayRecorder:
    """Writes what passes through a gateway. Everything but decoding and writing happens in the event loop.

    Every record goes through `rules` before it is written. `recorded` and `refused` count records.
    """

    def __init__(
        self, spool: Path, *, project: str = "default", rules: ContentRules | None = None, say: Say = print
    ) -> None:
        self._open_runs = OpenRuns(spool.parent / "open_runs", say)
        self.trajectories = Trajectories(project, self._open_runs)
        self.recorded = 0
        self.refused = 0
        self._project = project
        self._rules = rules or ContentRules()
        self._say = say
        self._reward_times = RewardTimes(spool.parent)
        self._journal = JournalWriter(
            spool, fsync_interval_s=_SYNC_INTERVAL_S, max_total_bytes=MAX_SPOOL_BYTES, sharing=True
        )
        self._jobs: queue.SimpleQueue[tuple[Job | None, int]] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._weighing = threading.Lock()
        self._awaited = threading.Event()  # somebody waits for what is in the queue
        self._worker: threading.Thread | None = None
        self._untaken: dict[str, list[Record]] = {}  # ends that the disk did not take

    def begin(self, owner: CallOwner, path: str, headers: Headers, request: bytes) -> RecordedCall:
        """A call begins; its `tap` goes where the answer is sent. Of its `headers` only the secrets are noted."""
        call = RecordedCall(self, owner, path, headers, request)
        self._write(self.trajectories.call_began(owner, call.start_ns))
        return call

    def ended(self, call: RecordedCall, ending: Ending) -> None:
        """A call is over."""
        end_ns = time.time_ns()
        self.trajectories.call_ended(call.owner, end_ns)
        weight = len(call.request) + call.size
        with self._weighing:
            full = self._waiting_bytes + weight > MAX_WAITING_BYTES
            self._waiting_bytes += 0 if full else weight
        if full:
            self._refuse(BufferError(f"over {MAX_WAITING_BYTES} bytes wait to be written"))
        else:
            self._submit(lambda: self._append(call.row(ending, end_ns, self._project, self._rules.mode)), weight)

    async def end(self, trajectory: str, order: EndOrder) -> EndReport:
        """End a trajectory; returns when it is on the disk. Raises Refusal (404, 507); after a 507, try again."""
        report, records = self.trajectories.end(trajectory, order)
        await self._end_written(trajectory, records)
        return report

    async def _end_written(self, trajectory: str, records: Sequence[Record], *, counted: bool = True) -> None:
        """Write what ends a trajectory, after what the disk did not take of it before. Raises Refusal (507)."""
        all_of_it = [*self._untaken.pop(trajectory, ()), *records]
        try:
            await self._written(all_of_it, counted=counted)
        except Refusal:
            self._untaken[trajectory] = all_of_it
            raise
        self.trajectories.forget(trajectory)

    async def reward(self, trajectory: str, order: RewardOrder) -> str:
        """Give a trajectory a reward; returns its id when it is on the disk. Raises Refusal (400, 507)."""
        reward = self.trajectories.reward(trajectory, order)
        await self._written([reward])
        return reward.id

    async def take(self, records: Sequence[Record]) -> None:
        """Keep what another process recorded; returns when it is on the disk. Raises Refusal (507)."""
        await self._written(records, made_here=False)

    async def end_idle_ones(self, idle_s: float) -> None:
        """For ever end the trajectories that have been quiet for `idle_s` seconds, again where the disk did not take
        an end."""
        while True:
            await asyncio.sleep(min(1.0, idle_s / 4))
            untaken = dict.fromkeys(self._untaken, ())
            for trajectory, records in {**untaken, **self.trajectories.end_idle(idle_s)}.items():
                with contextlib.suppress(Refusal):
                    await self._end_written(trajectory, records, counted=trajectory not in untaken)

    def close(self) -> None:
        """Write what waits, and seal the segment. Nothing may be recorded afterwards."""
        if self._worker is not None:
            self._jobs.put((None, 0))
            self._awaited.set()
            self._worker.join()
            self._worker = None
        try:
            self._journal.close()
        except OSError as error:
            self._refuse(error, records=0)
        self._open_runs.close()

    async def _written(self, records: Sequence[Record], *, made_here: bool = True, counted: bool = True) -> None:
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # whoever waits may leave; it is written all the same

        def write() -> None:
            try:
                for record in records:
                    self._journal.append(self._encoded(record))
                self._journal.sync()
                if made_here:
                    self._reward_times.note(records)
            except BaseException as error:  # noqa: BLE001  whoever waits gets it
                done.set_exception(error)
            else:
                self.recorded += len(records)
                done.set_result(None)

        self._submit(write)
        self._awaited.set()
        try:
            await asyncio.wrap_future(done)
        except OSError as error:
            self._refuse(error, records=len(records) if counted else 0)
            raise Refusal(507, "storage_error", f"the spool does not take it: {error}") from error

    def _write(self, records: Sequence[Record]) -> None:
        for record in records:
            self._submit(partial(self._append, record))

    def _append(self, record: Record) -> None:
        self._journal.append(self._encoded(record))
        self.recorded += 1

    def _encoded(self, record: Record) -> bytes:
        """A record as it may be written."""
        if isinstance(record, SpanRow):
            record = self._rules.row(record)
        elif isinstance(record, Reward):
            record = msgspec.structs.replace(record, explanation=self._rules.note(record.explanation))
        return encode_record(record)

    def _submit(self, job: Job, weight: int = 0) -> None:
        self._jobs.put((job, weight))
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="arttrace-gateway-recorder", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        while True:
            job, weight = self._jobs.get()
            if job is None:
                return
            try:
                job()
            except Exception as error:  # noqa: BLE001  recording never stops the gateway
                self._refuse(error)
            del job  # holds the bytes of a call
            with self._weighing:
                self._waiting_bytes -= weight
            if self._jobs.empty():
                self._awaited.wait(_REST_S)
                self._awaited.clear()

    def _refuse(self, error: Exception, *, records: int = 1) -> None:
        if not self.refused:
            # What a failure of the machine says is logged; another may quote the call.
            what = repr(error) if isinstance(error, (OSError, BufferError)) else type(error).__qualname__
            self._say(Problem(f"a call could not be recorded and is lost: {what}; further ones are only counted"))
        self.refused += records


class RecordedCall:
    """The bytes of one call while they pass."""

    def __init__(
        self, recorder: GatewayRecorder, owner: CallOwner, path: str, headers: Headers, request: bytes
    ) -> None:
        self.owner = owner
        self.request = request
        self.start_ns = time.time_ns()
        self.size = 0
        self._recorder = recorder
        self._path = path
        self._request_headers = headers
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._cut = False
        self._first_chunk_ns: int | None = None

    def tap(self, send: Send, takes: Callable[[int], bool]) -> Send:
        """`send`, with what goes through it kept: of a stream as much as there is room for, as `takes` says of each
        part; an answer that comes whole is held already."""

        async def tapped(message: Message) -> None:
            self._see(message, takes)
            await send(message)

        return tapped

    def end(self, ending: Ending) -> None:
        """The call is over."""
        self._recorder.ended(self, ending)

    def _see(self, message: Message, takes: Callable[[int], bool]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            for name, value in message["headers"]:
                if name in _KEPT_HEADERS:
                    self._headers[name.decode()] = value.decode("latin-1")
        elif body := message.get("body"):
            if self._first_chunk_ns is None:
                self._first_chunk_ns = time.time_ns()
            is_beyond = self.size + len(body) > MAX_ANSWER_BYTES
            if self._cut or is_beyond or (message.get("more_body") and not takes(len(body))):
                self._cut = True
                return
            self._body.append(body)
            self.size += len(body)

    def row(self, ending: Ending, end_ns: int, project: str, mode: ContentMode) -> SpanRow:
        """The call as a span, before the rules of content."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._request_headers}
        secrets.remember_headers(headers)
        exchange = Exchange(
            request=self.request,
            status=self._status,
            headers=self._headers,
            body=b"".join(self._body),
            ending=ending,
            body_cut=self._cut,
            path=self._path,
        )
        decoded = decode(exchange, content=mode != "off", limit=MAX_CONTENT_BYTES)
        attributes = {semconv.PROVIDER_NAME: "openai", **decoded.attributes}
        attributes.pop(semconv.TRAJECTORY_ID, None)
        if self.owner.trajectory is not None:
            attributes[semconv.TRAJECTORY_ID] = self.owner.trajectory
        if self._first_chunk_ns is not None and "event-stream" in self._headers.get("content-type", ""):
            attributes[semconv.RESPONSE_TIME_TO_FIRST_CHUNK] = max(self._first_chunk_ns - self.start_ns, 0) / 1e9
        if decoded.failure is not None:
            attributes[semconv.ERROR_TYPE] = decoded.failure[0]
        return SpanRow(
            trace_id=self.owner.trace_id,
            span_id=os.urandom(8).hex(),
            parent_span_id=self.owner.parent_span_id,
            name=decoded.name,
            start_ns=self.start_ns,
            end_ns=max(end_ns, self.start_ns),  # earlier where the clock was set back
            kind=3,
            status_code=_ERROR if decoded.failure is not None else 0,
            status_message=decoded.failure[1] if decoded.failure is not None else "",
            attributes=attributes,
            resource={semconv.SERVICE_NAME: project},
            scope_name=SCOPE_NAME,
        )


def recorder_of(spool: Path, say: Say) -> GatewayRecorder:
    """The recorder that the environment asks for: $ARTTRACE_PROJECT, and $ARTTRACE_CAPTURE_CONTENT.

    Raises ServingError for a mode that there is not.
    """
    word = os.environ.get("ARTTRACE_CAPTURE_CONTENT") or "full"
    mode = mode_of(word)
    if mode is None:
        raise ServingError(f"ARTTRACE_CAPTURE_CONTENT is {word!r}", "It is one of full, redacted and off.")
    return GatewayRecorder(
        spool, project=os.environ.get("ARTTRACE_PROJECT") or "default", rules=ContentRules(mode), say=say
    )
