"""The spool of one recorder: records appended to the journal of the data directory, refused ones counted.

What `recorded` counts is with the operating system, which outlives this process; what `refused` counts is lost, and
the log says so. A spool that fails and recovers again and again is not in the log each time.
"""

from __future__ import annotations

import errno
import time

import msgspec

from arttrace.capture.base.guard import Guard, failed, failures, logger
from arttrace.capture.export import summary
from arttrace.records.record import decode_record
from arttrace.system.errors import ArttraceError
from arttrace.system.journal import JournalFull, JournalWriter
from arttrace.system.paths import DataDir

# Of a spool that fails and recovers again and again the log has this many lines, and then one in this time.
_MAX_WARNINGS = 6
_WARN_EVERY_S = 60.0
_SPOOL_SEGMENT_BYTES = 64 << 20
_OUTBOX_SEGMENT_BYTES = 8 << 20
# What makes room where the journal holds as much as it may.
_TAKE_IN = "Take it into the store, which makes room: `arttrace ls` does"
_SHIP = "Its collector has not taken it: `arttrace ship` delivers it, which makes room"
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_SPOOLING = "writing to the spool"
_spooling = Guard(_SPOOLING, background=True)


class Counts(msgspec.Struct, frozen=True):
    """Records that were spooled; that were not, for want of disk or memory; and, with an endpoint, those that this
    process delivered to it, and those that it refused for good. `left_out` are runs, not records: those that were not
    sampled."""

    recorded: int = 0
    refused: int = 0
    delivered: int = 0
    rejected: int = 0
    left_out: int = 0


class SpoolWriter:
    """Used by the recorder's background thread, or by the one that takes its place at the end of the process."""

    def __init__(self, data: DataDir, *, ships: bool, max_bytes: int) -> None:
        """What `ships`, to a collector, is nobody else's to take away, and each of its segments is read as a whole."""
        self.journal = JournalWriter(
            data.outbox if ships else data.spool,
            max_segment_bytes=_OUTBOX_SEGMENT_BYTES if ships else _SPOOL_SEGMENT_BYTES,
            fsync_interval_s=None,
            max_total_bytes=max_bytes,
            sharing=True,
        )
        self._makes_room = _SHIP if ships else _TAKE_IN
        self.recorded = 0
        self.refused = 0
        self._unreported = 0  # refused, and not yet logged as lost
        self._failing = False
        self._warnings_left = _MAX_WARNINGS
        self._warn_at = 0.0
        self._removed = 0

    def write(self, payloads: list[bytes]) -> bool:
        """Append records, each as its bytes; whether any was taken. One that is refused is logged and counted."""
        if len(payloads) > 1 and self._append(payloads):
            return True
        return sum(self._append([payload]) for payload in payloads) > 0  # some of it may still find room

    def _append(self, payloads: list[bytes]) -> bool:
        """Whether the journal took them. A refusal counts where it is of one payload."""
        try:
            self.journal.append(*payloads)
        except Exception as error:  # noqa: BLE001  rule 1
            if len(payloads) == 1:
                self.refuse(error)
                if summary.is_on():
                    summary.lost(decode_record(payloads[0]))
            return False
        self.recorded += len(payloads)
        if self._failing:
            self._failing = False
            if self._may_warn():
                logger.warning(
                    "arttrace: the spool accepts records again; %d were refused and are lost", self._take_unreported()
                )
        if self.journal.removed > self._removed:
            gone, self._removed = self.journal.removed - self._removed, self.journal.removed
            logger.warning("arttrace: %s was removed; up to %d records were lost with it", self.journal.directory, gone)
        return True

    def refuse(self, error: Exception) -> None:
        """Count a record that could not be written, for `error`."""
        error = self._with_remedy(error)
        self.refused += 1
        self._unreported += 1
        if not self._failing and failures[_SPOOLING] and self._may_warn():  # the first time is logged below
            logger.warning("arttrace: %s failed again: %s", _SPOOLING, error)
        self._failing = True
        failed(_SPOOLING, error, background=True)

    def _with_remedy(self, error: Exception) -> Exception:
        """The error, and what to do where the journal is full, or where the directory is not to be written into:
        containers and functions as a service often have one place for that."""
        if isinstance(error, JournalFull):
            return ArttraceError(f"{error}. {self._makes_room}")
        if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
            return ArttraceError(f"{error}. Set ARTTRACE_DIR to a directory that this user may write into")
        return error

    def _may_warn(self) -> bool:
        """Whether a line about the spool is due: on an almost full disk it takes one record and refuses the next."""
        if self._warnings_left:
            self._warnings_left -= 1
        elif time.monotonic() < self._warn_at:
            return False
        self._warn_at = time.monotonic() + _WARN_EVERY_S
        return True

    def _take_unreported(self) -> int:
        refused, self._unreported = self._unreported, 0
        return refused

    def sync(self) -> None:
        """Return when all of it is on the disk."""
        with _spooling:
            self.journal.sync()

    def close(self) -> None:
        """Seal the segment so that a reader may take it away. A later `write` opens a new one."""
        with _spooling:
            self.journal.close()
        if self._unreported:
            logger.warning("arttrace: %d records could not be written and are lost", self._take_unreported())

    def after_fork_in_child(self) -> None:
        """What was counted is the parent's."""
        self.recorded = self.refused = self._unreported = 0
