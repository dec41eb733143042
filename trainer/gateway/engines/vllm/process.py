"""A child process that cannot outlive us: started behind a guard, logged to a file, stopped with its whole group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.gateway.engines.vllm import process_group


class GuardedProcess:
    """A command in its own process group, whose output goes to `log`.

    It ends when `stop` is called or when this process dies, however it dies. The directory `scratch` goes with it, and
    the files in it. Raises OSError when the log cannot be
    written or the interpreter cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        grace_s: float = 10.0,
        scratch: Path | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._grace_s = grace_s
        self._scratch = str(scratch or "")
        with log.open("ab") as out:
            self.log_start = out.tell()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", process_group.__file__, str(grace_s), self._scratch, *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process group's id (that of the guard)."""
        return self._guard.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; 128 + N when signal N ended it; else its exit code."""
        return self._guard.poll()

    def log_text(self, max_bytes: int = 200_000) -> str:
        """The end of what this run has logged, as far as it can be read."""
        with contextlib.suppress(OSError), self.log.open("rb") as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(self.log_start, size - max_bytes))
            return lines.read().decode("utf-8", "replace")
        return ""

    def stop(self) -> None:
        """End the group: SIGTERM, and SIGKILL after the grace. Returns when it is gone; harmless when it is."""
        if self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
        try:
            self._guard.wait(self._grace_s + 5)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()
            process_group.remove(self._scratch)  # where the guard was killed
