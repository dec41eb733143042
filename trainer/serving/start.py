"""`arttrace serve` as a child of the program that needs it: started, waited for, and never left behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from arttrace.system.errors import ServingError
from arttrace.system.exit_status import how_ended
from arttrace.system.paths import DataDir
from arttrace.wire.content.secrets import NO_KEY
from trainer.gateway.engines.vllm.process import GuardedProcess
from trainer.gateway.status import ServingFile
from trainer.output.log import make_room, without_time
from trainer.serving.client import GatewayClient, find_serving

Progress = Callable[[str, float], None]
"""Called about five times a second with the newest line of the child's output, and the seconds since its start."""


class Serving:
    """A running `arttrace serve`. It stops with `stop`, at the end of a `with` block, or when this process dies.

    Args:
        process: The process.
        record: What its `serving.json` says.
    """

    def __init__(self, process: GuardedProcess, record: ServingFile) -> None:
        self._process = process
        self.record = record
        self.url = record.url

    @property
    def client_environment(self) -> dict[str, str]:
        """The variables that lead an OpenAI client here."""
        key = os.environ.get("ARTTRACE_API_KEY") or NO_KEY
        return {"OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_KEY": key}

    def client(self) -> GatewayClient:
        """A client of its gateway."""
        return GatewayClient(self.url)

    def check(self) -> None:
        """Raises ServingError with the end of its output when it has died."""
        if self._process.returncode is not None:
            raise _died(self._process)

    def stop(self) -> None:
        """Stop the gateway and vLLM; returns when both are gone."""
        self._process.stop()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_serving(
    data: DataDir,
    base_model: Path,
    *,
    policy: str = "policy",
    port: int = 0,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    on_progress: Progress | None = None,
    timeout_s: float = 600.0,
) -> Serving:
    """Start `arttrace serve` and wait until it answers.

    Args:
        data: The data directory to serve for.
        base_model: The directory of a model in Hugging Face form.
        policy: The name of the policy.
        port: The port to listen on at 127.0.0.1; 0 takes a free one.
        options: Further options of the command.
        env: Variables beside those of this process.
        on_progress: Called about five times a second until it is ready.
        timeout_s: The seconds that it may take.

    Raises:
        ServingError: It failed or was not ready in time (with what it printed), or the directory is served already.
    """
    if (running := find_serving(data)) is not None:
        raise ServingError(f"{data.root} is already served at {running.url} (process {running.pid})", "Stop that one.")
    data.serving.unlink(missing_ok=True)
    command = [sys.executable, "-u", "-c", "from arttrace.commands import main; main()", "serve"]
    command += ["--base-model", str(base_model), "--policy", policy, "--port", str(port), "--dir", str(data.root)]
    began = time.monotonic()
    output = data.root / "logs" / "serve-output.log"  # what it prints, of which it writes the log's lines to serve.log
    make_room(output)
    process = GuardedProcess([*command, *options], log=output, env={**os.environ, **(env or {})}, grace_s=20.0)
    try:
        while (record := find_serving(data)) is None:
            waited = time.monotonic() - began
            if process.returncode is not None:
                raise _died(process)
            if waited > timeout_s:
                raise ServingError(f"`arttrace serve` was not ready in {timeout_s:.0f} s", f"Its output: {process.log}")
            if on_progress is not None:
                on_progress(_last_line(process), waited)
            time.sleep(0.2)
    except BaseException:
        process.stop()
        raise
    return Serving(process, record)


def _last_line(process: GuardedProcess) -> str:
    lines = process.log_text(2000).strip().splitlines()
    return without_time(lines[-1]).strip() if lines else "starting"


def _died(process: GuardedProcess) -> ServingError:
    text = process.log_text(4000).strip()
    _, found, after = text.rpartition("error: ")
    died = f"`arttrace serve` ended with {how_ended(process.returncode)}:\n{text[-2000:]}"
    return ServingError(after if found else died, f"Its output: {process.log}")
