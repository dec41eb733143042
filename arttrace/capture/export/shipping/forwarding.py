"""Receivers beside the local store or the collector: each has an outbox of its own and a thread that ships it.

So one that is away, slow or full delays neither another nor what is recorded. Everything here happens in the
recorder's background thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from opentelemetry import trace

from arttrace.capture.base.guard import Guard, failed, logger
from arttrace.capture.base.receiver import Receiver
from arttrace.capture.export.shipping.shipper import Shipper
from arttrace.system.journal import JournalFull, JournalWriter
from arttrace.system.paths import DataDir
from arttrace.system.private_files import make_directory

MAX_OUTBOX_BYTES = 1 << 30
"""The outbox of one receiver never holds more than this; beyond it what is recorded is not sent there."""

ABOUT = "receiver.json"
"""The file in a receiver's outbox that says whose it is."""

_SEGMENT_BYTES = 8 << 20
_forwarding = Guard("forwarding to a receiver", background=True)


class ReceiverOutbox:
    """One receiver's outbox and its shipper. Raises ArttraceError when the receiver cannot be one."""

    def __init__(self, data: DataDir, receiver: Receiver) -> None:
        self.receiver = receiver
        self.directory = data.receivers / receiver.folder()
        self.shipper = Shipper(self.directory, receiver)
        self.refused = 0
        self._full = False
        self._about_written = False
        self._outbox = JournalWriter(
            self.directory,
            max_segment_bytes=_SEGMENT_BYTES,
            fsync_interval_s=None,
            max_total_bytes=MAX_OUTBOX_BYTES,
            sharing=True,
        )

    def write(self, payloads: Sequence[bytes]) -> None:
        """Put records into the outbox. Those that do not fit are counted, and said once."""
        if not self._about_written:
            self._about_written = True
            write_about(self.directory, self.receiver)
        try:
            self._outbox.append(*payloads)
        except JournalFull:
            self.refused += len(payloads)
            if not self._full:
                self._full = True
                logger.warning(
                    "arttrace: %d MiB wait for %s in %s, and no more are kept for it: what is recorded now is not sent "
                    "there",
                    MAX_OUTBOX_BYTES >> 20,
                    self.receiver.called,
                    self.directory,
                )
        except OSError as error:
            self.refused += len(payloads)
            failed(f"writing to the outbox of {self.receiver.called}", error, background=True)
        else:
            if self._full:
                self._full = False
                logger.warning("arttrace: %s accepts spans again; %d were not sent", self.receiver.called, self.refused)
            self.shipper.notify()

    def sync(self) -> None:
        """Return when all of it is on the disk."""
        self._outbox.sync()

    def seal(self) -> None:
        """The same, and the segment may leave when it is delivered."""
        self._outbox.close()


class ReceiverOutboxes:
    """All receivers of one recorder. One that cannot be one is logged, and left out.

    `implied` is the receiver of OTEL_EXPORTER_OTLP_*, which may be meant for somebody else: without `meant` it is left
    to an OpenTelemetry provider of the program's own, where there is one.
    """

    def __init__(
        self, data: DataDir, receivers: Iterable[Receiver], implied: Receiver | None = None, meant: bool = False
    ) -> None:
        self._each: list[ReceiverOutbox] = []
        for receiver in [*receivers, *([implied] if implied is not None and _is_ours(implied, meant) else [])]:
            with _forwarding:
                self._each.append(ReceiverOutbox(data, receiver))

    @property
    def shippers(self) -> list[Shipper]:
        """One for each receiver."""
        return [each.shipper for each in self._each]

    def write(self, payloads: Sequence[bytes]) -> None:
        """Into each outbox."""
        for each in self._each:
            with _forwarding:
                each.write(payloads)

    def sync(self) -> None:
        """Each outbox is on the disk."""
        for each in self._each:
            with _forwarding:
                each.sync()

    def seal(self) -> None:
        """Each outbox is on the disk and may be delivered as a whole."""
        for each in self._each:
            with _forwarding:
                each.seal()


def _is_ours(implied: Receiver, meant: bool) -> bool:
    if meant:
        return True
    if getattr(trace, "_TRACER_PROVIDER", None) is not None:
        logger.info(
            "arttrace: OTEL_EXPORTER_OTLP_* are left to the program's own OpenTelemetry provider; with ARTTRACE_OTLP=1 "
            "what arttrace records is sent to %s too",
            implied.called,
        )
        return False
    logger.warning(
        "arttrace: what is recorded, contents included, is sent to %s as well (OTEL_EXPORTER_OTLP_*). ARTTRACE_OTLP=1 "
        "says that this is meant, ARTTRACE_OTLP=0 that it is not",
        implied.called,
    )
    return True


class About(msgspec.Struct, frozen=True):
    """Whose outbox it is, without credentials."""

    name: str
    url: str


def write_about(directory: Path, receiver: Receiver) -> None:
    """Say in the outbox whose it is, for who finds it later."""
    make_directory(directory)
    about = About(receiver.called, receiver.target().geturl())
    (directory / ABOUT).write_bytes(msgspec.json.encode(about))


def waiting(data: DataDir) -> list[tuple[About, Path]]:
    """The outboxes that there are, and whose."""
    found = []
    for path in sorted(data.receivers.glob(f"*/{ABOUT}")):
        try:
            found.append((msgspec.json.decode(path.read_bytes(), type=About), path.parent))
        except (OSError, msgspec.DecodeError):
            found.append((About(path.parent.name, ""), path.parent))
    return found
