"""Delivers an outbox to an OTLP receiver: a record is removed only when it is acknowledged or refused.

What was acknowledged is known by an offset for each segment, kept in a file beside them; so a pass can end anywhere
(the receiver is away, the process is killed) and the next one, in whichever process, goes on from there. A record may
arrive twice, and is one by its ids.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from arttrace.capture.base.guard import logger
from arttrace.capture.export.shipping.otlp import encode_request
from arttrace.capture.export.shipping.otlp_client import Answer, OtlpClient
from arttrace.formats.evaluations import reward_span
from arttrace.records import semconv
from arttrace.records.record import Record, encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.system.files import far_descriptor
from arttrace.system.journal import JournalFull, JournalWriter, Segment, list_segments, lock, read_segment
from arttrace.system.journal.reader import SEALED_SUFFIX
from arttrace.system.private_files import make_directory

_BATCH_BYTES = 4 << 20
_BATCH_RECORDS = 512
_MAX_REFUSED_BYTES = 64 << 20
_BUSY: Final = (408, 429, 502, 503, 504)
_BAD_CONTENT: Final = (400, 413, 422)
_REMEDIES: Final = {
    401: "; check its key or headers",
    403: "; check its key or headers",
    404: "; check its URL: nothing takes spans at this path",
    405: "; check its URL: nothing takes spans at this path",
}
_TRIES_BEFORE_BLAME = 5  # a receiver that fails (500) on one batch again and again may fail because of it

_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


@dataclass(slots=True)
class Delivered:
    """How many records were delivered, how many were refused, and how many stretches of the outbox were damaged."""

    delivered: int = 0
    refused: int = 0
    damaged: int = 0


class NotNow(Exception):
    """The receiver takes nothing now. With `misconfigured` it will not until somebody changes something. `kind` is the
    same for the same trouble, whatever words the receiver has for it."""

    def __init__(self, reason: str, retry_after_s: float = 0.0, *, kind: str = "", misconfigured: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.kind = kind or reason
        self.misconfigured = misconfigured


class _Fails(NotNow):
    """The receiver fails, perhaps on this batch only."""


class _Refused(Exception):
    """The receiver will never take this batch as it is."""


class _Blamed(Exception):
    """The receiver has failed on this batch so often that the batch may be the cause."""


@dataclass(slots=True)
class _Part:
    """A batch that is not acknowledged yet: the records of it that are delivered or refused, how many the receiver had
    taken in all when it was last tried, and how often it failed on some records of it while it took others."""

    delivered: int
    taken: set[int] = field(default_factory=set)
    blamed: int = 0


class Delivery:
    """The delivery of one directory; whoever makes passes holds its `ShippingLock`."""

    def __init__(self, directory: Path, client: OtlpClient, stopped: Callable[[], bool] = lambda: False) -> None:
        self.directory = directory
        self.counts = Delivered()
        self._client = client
        self._stopped = stopped
        self._offsets = read_offsets(directory)
        self._refused = JournalWriter(directory / "refused", max_total_bytes=_MAX_REFUSED_BYTES)
        self._ours: bool | None = None
        self._failing: tuple[str, int] | None = None
        self._failures = 0
        self._splitting = False
        self._parts: dict[tuple[str, int], _Part] = {}
        self._scored: set[str] = set()  # of the batch that is being delivered

    def run(self, only: set[str] | None = None) -> None:
        """One pass over the segments, or those named in `only`. Raises NotNow when the receiver takes nothing."""
        failing: _Fails | None = None
        for segment in list_segments(self.directory):
            if self._stopped():
                return
            if only is None or segment.name in only:
                try:
                    self._segment(segment)
                except FileNotFoundError:  # sealed under its other name just now
                    continue
                except _Fails as failure:
                    failing = failure
        if failing is not None:
            raise failing

    def _segment(self, segment: Segment) -> None:
        offset = self._offsets.get(segment.name, 0)
        finished = segment.finished()  # asked before reading: nothing can be appended after a yes
        if not finished and segment.path.stat().st_size <= offset:
            return
        reader = read_segment(segment.path, offset, finished=finished)
        batch: list[Record] = []
        size = unreadable = 0
        at = end = offset
        for end, payload in reader:
            try:
                batch.extend(_decoder.decode_lines(payload))
            except (msgspec.DecodeError, UnicodeDecodeError):
                unreadable += 1
            size += len(payload)
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_RECORDS:
                self._deliver(batch, (segment.name, at))
                self._acknowledge(segment, end, damaged=bool(reader.corrupt or unreadable))
                if self._stopped():
                    return
                batch, size, at = [], 0, end
        if end > at:
            self._deliver(batch, (segment.name, at))
            self._acknowledge(segment, end, damaged=bool(reader.corrupt or unreadable))
        damaged = reader.corrupt + unreadable + bool(reader.unreadable)
        if damaged:
            self.counts.damaged += damaged
            logger.warning("arttrace: %d damaged stretches in %s were not sent", damaged, segment.path)
        if finished:
            if damaged or segment.kept_as.exists():
                segment.path.replace(segment.kept_as)
            else:
                segment.path.unlink()
            self._offsets.pop(segment.name, None)
            _write_offsets(self.directory, self._offsets)

    def _acknowledge(self, segment: Segment, offset: int, *, damaged: bool) -> None:
        self._failing, self._failures = None, 0
        self._scored.clear()
        if damaged:
            segment.kept_as.touch()
        self._offsets[segment.name] = offset
        _write_offsets(self.directory, self._offsets)

    def _deliver(self, records: list[Record], place: tuple[str, int]) -> None:
        """Return when each record is delivered or refused."""
        part = self._parts.setdefault(place, _Part(self.counts.delivered))
        self._splitting = part.blamed > 0
        before = len(part.taken)
        # What is left of a batch may be the bad records alone: then other batches were taken meanwhile.
        takes_others = before > 0 and self.counts.delivered > part.delivered
        try:
            blamed = self._deliver_parts(records, range(len(records)), part.taken, place)
        finally:
            part.delivered = self.counts.delivered
        if blamed:
            fails_on_all = len(blamed) == len(records) - before and not takes_others
            part.blamed += not fails_on_all or self._takes_again(records, part.taken)
            if part.blamed < _TRIES_BEFORE_BLAME:
                raise _Fails(blamed[0][1], kind="fails")
        for record, reason in blamed:
            self._keep_refused(record, reason)
        del self._parts[place]

    def _deliver_parts(
        self, records: list[Record], these: range, taken: set[int], place: tuple[str, int]
    ) -> list[tuple[Record, str]]:
        """Deliver these records of a batch, half by half where the receiver minds some of them. Returns those on which
        it fails, and how; what it refuses is kept as refused. What is `taken` is not sent again."""
        left = [number for number in these if number not in taken]
        try:
            if left:
                self._send([records[number] for number in left], place)
            taken.update(left)
            return []
        except _Blamed as failure:
            if len(left) == 1:
                return [(records[left[0]], str(failure))]
        except _Refused as refusal:
            if len(left) == 1:
                self._keep_refused(records[left[0]], str(refusal))
                taken.update(left)
                return []
        half = len(these) // 2
        return [
            *self._deliver_parts(records, these[:half], taken, place),
            *self._deliver_parts(records, these[half:], taken, place),
        ]

    def _takes_again(self, records: list[Record], taken: set[int]) -> bool:
        """Whether the receiver takes now what it has taken of a batch: then what it fails on is the cause itself."""
        spans = [span for number in sorted(taken)[:3] if (span := self._span(records[number])) is not None]
        return any(self._post(encode_request(self._client.formed([span]))).taken for span in spans)

    def _send(self, records: list[Record], place: tuple[str, int]) -> None:
        self._send_scores([record for record in records if isinstance(record, Reward)], place)
        spans = [span for record in records if (span := self._span(record)) is not None]
        if not spans:
            return
        try:
            request = encode_request(self._client.formed(spans))
        except ValueError as error:  # it cannot be said in OTLP
            raise _Refused(str(error)) from error
        answer = self._post(request)
        if answer.taken:
            self.counts.delivered += len(spans) - answer.rejected
            if answer.rejected:
                self._count_refused(answer.rejected, answer.reason)
        elif answer.status in _BAD_CONTENT:
            raise _Refused(answer.said)
        else:
            self._failed(place, f"{self._client.name} answers {answer.said}")

    def _send_scores(self, rewards: list[Reward], place: tuple[str, int]) -> None:
        """Rewards, where the receiver takes scores of their own: each once, however often its batch is tried."""
        for reward in rewards:
            score = None if reward.id in self._scored else self._client.score(reward)
            if score is None:
                continue
            answer = self._asked(lambda score=score: self._client.post_score(score))  # type: ignore[misc]
            if answer.status in _BAD_CONTENT or answer.rejected:
                self._keep_refused(reward, answer.reason)
            elif not answer.taken:
                self._failed(place, f"{self._client.name} answers {answer.said}")
            else:
                self.counts.delivered += 1
            self._scored.add(reward.id)

    def _span(self, record: Record) -> SpanRow | None:
        """What goes over the wire for a record: nothing for a call in progress where nobody would understand it, nor of
        a run that was left out where the run stays."""
        if isinstance(record, Reward):
            return reward_span(record) if self._client.takes_rewards else None
        if not isinstance(record, SpanRow):
            raise _Refused(f"a {type(record).__name__} is not sent over OTLP")
        if record.attributes.get(semconv.OPERATION_NAME) == semconv.OPERATION_LEFT_OUT:
            return record if self._client.takes_rewards else None
        if record.end_ns == 0:
            if self._ours is None:
                self._post(b"")  # a request without spans: its answer says whose collector it is
            return record if self._ours else None
        return record

    def _post(self, request: bytes) -> Answer:
        answer = self._asked(lambda: self._client.post(request))
        self._ours = answer.ours
        return answer

    def _asked(self, ask: Callable[[], Answer]) -> Answer:
        try:
            answer = ask()
        except OSError as error:
            reason = f"{self._client.name} does not answer ({error.strerror or error})"
            raise NotNow(reason, kind="away") from error
        if answer.status in _BUSY:
            reason = f"{self._client.name} answers {answer.said}"
            raise NotNow(reason, answer.retry_after_s, kind="busy")
        if not answer.taken and answer.status < 500 and answer.status not in _BAD_CONTENT:
            reason = f"{self._client.name} answers {answer.said}"
            reason += _REMEDIES.get(answer.status, "")
            raise NotNow(reason, answer.retry_after_s, kind=f"refuses {answer.status}", misconfigured=True)
        return answer

    def _failed(self, place: tuple[str, int], reason: str) -> NoReturn:
        if self._splitting:
            raise _Blamed(reason)
        self._failures = self._failures + 1 if self._failing == place else 1
        self._failing = place
        if self._failures % _TRIES_BEFORE_BLAME:
            raise _Fails(reason, kind="fails")
        self._splitting = True
        raise _Blamed(reason)

    def _keep_refused(self, record: Record, reason: str) -> None:
        with contextlib.suppress(JournalFull):  # it is counted all the same
            self._refused.append(encode_record(record))
        self._count_refused(1, reason)

    def _count_refused(self, number: int, reason: str) -> None:
        if not self.counts.refused:
            logger.warning("arttrace: %s refuses spans: %s", self._client.name, reason)
        self.counts.refused += number


class ShippingLock:
    """Held by the one process that delivers a directory; the system drops it when that process ends."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    @classmethod
    def take(cls, directory: Path) -> ShippingLock | None:
        """The lock, or None when another process has it. Raises OSError when the directory cannot be written."""
        make_directory(directory)
        fd = far_descriptor(os.open(directory / "shipper.lock", os.O_RDWR | os.O_CREAT, 0o600))
        if lock.acquire(fd):
            return cls(fd)
        os.close(fd)
        return None

    def held(self) -> bool:
        """Whether it still locks anything: the directory may have been removed, and made again, or all files of the
        process closed."""
        try:
            return self._fd is not None and os.fstat(self._fd).st_nlink > 0
        except OSError:
            self._fd = None
            return False

    def release(self) -> None:
        """Let another process deliver. In a forked child: let go of the parent's."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


def sizes(directory: Path, *, finished_only: bool = False) -> dict[str, int]:
    """The segments there are and their sizes in bytes; or those that nobody writes any more, as they are sealed or
    their process was killed."""
    found = {}
    for segment in list_segments(directory):
        if not finished_only or segment.finished():
            with contextlib.suppress(FileNotFoundError):
                found[segment.name] = segment.path.stat().st_size
    return found


def undelivered(directory: Path, wanted: Mapping[str, int]) -> set[str]:
    """Those of the `wanted` segments that are not delivered up to that size; a sealed one until it is gone."""
    if not wanted:
        return set()
    offsets = read_offsets(directory)
    return {
        segment.name
        for segment in list_segments(directory)
        if segment.name in wanted
        and (segment.path.suffix == SEALED_SUFFIX or offsets.get(segment.name, 0) < wanted[segment.name])
    }


def read_offsets(directory: Path) -> dict[str, int]:
    """How far each segment is acknowledged; nothing when the file is missing or damaged: then it is sent again."""
    try:
        return msgspec.json.decode((directory / "delivered.json").read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError):
        return {}


def _write_offsets(directory: Path, offsets: dict[str, int]) -> None:
    # A full disk keeps the old file: what is in between is sent again.
    with contextlib.suppress(OSError):
        new = directory / "delivered.json.new"
        new.write_bytes(msgspec.json.encode(offsets))
        new.replace(directory / "delivered.json")
