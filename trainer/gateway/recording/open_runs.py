"""The runs that are open, kept beside the spool: a gateway that was started again can end them.

Each call is noted before it is answered, so that a run which lost calls with its gateway ends as incomplete: the notes
say how many there were. They outlive the process, however it ends. A machine that went down may have lost the last of
them: those that were not closed are then of no use, and the runs stay incomplete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.files import replace_file
from trainer.output.log import Problem

_MAX_BYTES = 16 << 20
"""Over this size, and twice as large as when it was written anew, the file is written anew."""


class OpenRun(msgspec.Struct):
    """What is known of an open run: when it began, its calls, and its sub-agents with their beginnings."""

    start_ns: int
    calls: int = 0
    agents: dict[str, int] = {}


class _Note(msgspec.Struct, omit_defaults=True):
    """A line: a call of `run` at `ns`, of a sub-agent or not; or the run's end; or all of it so far."""

    run: str = ""
    ns: int = 0
    agent: str = ""
    ended: bool = False
    whole: OpenRun | None = None
    boot: str = ""
    closed: bool = False


_lines: msgspec.json.Decoder[_Note] = msgspec.json.Decoder(_Note)


class OpenRuns:
    """Those of one data directory. `runs` are the open ones by name, those of an earlier gateway at first.

    A disk that does not take the notes is said once; then no run is found again after a restart.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.runs = _read(path)
        self._path = path
        self._say = say
        self._file = -1
        self._size = self._compact_at = 0
        if path.exists():
            self._guarded(self._write_anew)

    def call_began(self, run: str, ns: int, agent: str | None = None) -> None:
        """A call begins, with which the run or the sub-agent may begin."""
        known = self.runs.setdefault(run, OpenRun(ns))
        known.calls += 1
        if agent is not None:
            known.agents.setdefault(agent, ns)
        self._note(_Note(run, ns, agent or ""))

    def ended(self, run: str) -> None:
        """The run is over, or forgotten."""
        if self.runs.pop(run, None) is not None:
            self._note(_Note(run, ended=True))

    def close(self) -> None:
        """Nothing is noted any more: what is there holds whatever becomes of the machine."""
        if self._file >= 0:
            self._note(_Note(closed=True))
            with contextlib.suppress(OSError):
                os.fsync(self._file)
                os.close(self._file)
            self._file = -1

    def _note(self, note: _Note) -> None:
        def write() -> None:
            if self._file < 0 or (self._size > _MAX_BYTES and self._size > self._compact_at):
                self._write_anew()  # with what is noted here
                return
            line = msgspec.json.encode(note) + b"\n"
            if os.write(self._file, line) < len(line):
                raise OSError("a note was written in part")
            self._size += len(line)

        if self._compact_at >= 0:
            self._guarded(write)

    def _write_anew(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        notes = [_Note(boot=_boot()), *(_Note(name, whole=run) for name, run in self.runs.items())]
        content = b"".join(msgspec.json.encode(note) + b"\n" for note in notes)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, content)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._size, self._compact_at = len(content), 2 * len(content)

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._compact_at = -1
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)  # half of the notes would count fewer calls than there were
            self._say(Problem(f"open runs cannot be noted, and none can be ended after a restart: {error!r}"))


def _read(path: Path) -> dict[str, OpenRun]:
    """The open runs of the file; none where it does not hold."""
    runs: dict[str, OpenRun] = {}
    boot, closed = "", False
    try:
        notes = [_lines.decode(line) for line in path.read_bytes().splitlines() if line]
    except (OSError, *UNREADABLE):
        return runs
    for note in notes:
        closed = note.closed
        if note.boot:
            boot = note.boot
        elif note.ended:
            runs.pop(note.run, None)
        elif note.whole is not None:
            runs[note.run] = note.whole
        elif note.run:
            run = runs.setdefault(note.run, OpenRun(note.ns))
            run.calls += 1
            if note.agent:
                run.agents.setdefault(note.agent, note.ns)
    return runs if closed or boot == _boot() else {}


def _boot() -> str:
    """What distinguishes this start of the machine from another."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
