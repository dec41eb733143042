"""The collector's side of its child process (store_process.py): started, watched, started again when it dies."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time

import msgspec

from arttrace.collector.store_process import STOP, Round
from arttrace.system.exit_status import how_ended
from arttrace.system.paths import DataDir

_log = logging.getLogger("arttrace")

_RESTART_S = 1.0
_STOP_S = 60.0


class StoreSupervisor:
    """What is in the spool gets into the store by and by; `owner`, `trouble` and `lag_s` say how it goes."""

    def __init__(self, data: DataDir, token: str) -> None:
        self._data = data
        self._token = token
        self._round = Round(time.monotonic(), False, "what an earlier process left is being taken in")
        self._stop = threading.Event()
        self._starting = threading.Lock()
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, name="arttrace-loader", daemon=True)
        self._thread.start()

    @property
    def owner(self) -> bool:
        """Whether the collector owns the store."""
        return self._round.owner

    @property
    def trouble(self) -> str:
        """Why spans do not get into the store, or nothing."""
        return self._round.trouble or self._round.reading

    def lag_s(self, last: float) -> float:
        """Seconds for which a span may wait already, the last one having been acknowledged at `last` (monotonic)."""
        began = self._round.began
        return 0.0 if last <= began else time.monotonic() - began

    def close(self) -> None:
        """Returns when the rest is loaded and the store is free."""
        with self._starting:
            self._stop.set()
            process = self._process
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended by itself
            process.stdin.write(STOP.encode())
            process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:  # what is left stays in the spool
            process.kill()
            process.wait()
        self._thread.join()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "arttrace.collector.store_process", str(self._data.root)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(self._token.encode() + b"\n")
        process.stdin.flush()
        return process

    def _watch(self) -> None:
        while True:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                try:
                    round = msgspec.json.decode(line, type=Round)
                except msgspec.MsgspecError:  # whatever Python itself starts here, as a sitecustomize, prints there too
                    _log.warning(
                        "the process that loads the store printed %.200r", line.decode(errors="replace").strip()
                    )
                    continue
                if round.trouble and round.trouble != self._round.trouble:
                    _log.error("%s", round.trouble)
                if round.reading:
                    _log.warning("%s", round.reading)
                # What was not loaded is as old as it was.
                began = self._round.began if round.trouble or round.reading else round.began
                self._round = msgspec.structs.replace(round, began=began)
            self._process.wait()
            if self._stop.is_set():
                return
            how = how_ended(self._process.returncode)
            died = f"the process that loads the store ended ({how}); it is started again"
            if died != self._round.trouble:
                _log.error("%s", died)
            self._round = Round(self._round.began, False, died)
            self._stop.wait(_RESTART_S)
            with self._starting:
                if self._stop.is_set():
                    return
                with contextlib.suppress(OSError):  # no room for a process now: the one that ended is met again
                    self._process = self._start()
