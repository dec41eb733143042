"""`arttrace train`, with or without --daemon, in processes that are killed or interrupted where they are asked to.

    python stopped_training.py FD [--judge]

Each line of standard input is a `Start` as JSON. They run one after the other, each as a fork of this process, which
has done the slow imports, with --judge those of a judge too; when one has ended as it must, a line is written to the
open file FD. `run` does it for a test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from forked_starts import ended_in_a_fork

from arttrace.system.processes import collect_garbage_seldom

INTERRUPTED = 130


class Start(msgspec.Struct, frozen=True):
    """One start of `arttrace train ARGUMENT...`, and the exit code that it must end with.

    `stop` is where it is stopped, as PLACE:VERSION with the version in the making: a state of the daemon, which has
    just written that it is in it; "optimizer", when the step has changed the weights in memory; "half", the middle of
    writing the adapter; "handed", when it was handed over and is not on disk; or "report", when it is recorded, and
    before a tracker is reported. `presses` are those of Ctrl-C there;
    without any it is SIGKILL.
    """

    arguments: tuple[str, ...]
    stop: str | None = None
    presses: int = 0
    exit: int = 0


def killed_at(stop: str, arguments: Sequence[object]) -> Start:
    """A start that is killed there."""
    return Start(tuple(map(str, arguments)), stop, exit=-signal.SIGKILL)


def run(
    starts: Sequence[Start | Callable[[], object]], timeout: float, *, judge: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs them all, and in between, in this process, the functions that stand there; what the starts wrote is in the
    result. Raises AssertionError when one ended otherwise than it must, or not within `timeout` seconds."""
    ended_fd, told_fd = os.pipe()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, os.fdopen(ended_fd) as ended:
        command = [sys.executable, __file__, str(told_fd), *(["--judge"] if judge else [])]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
            pass_fds=[told_fd],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ) as process:
            os.close(told_fd)
            too_late = threading.Timer(timeout, process.kill)
            too_late.start()
            try:
                for each in starts:
                    if isinstance(each, Start):
                        assert process.stdin is not None
                        process.stdin.write(msgspec.json.encode(each).decode() + "\n")
                        process.stdin.flush()
                        if not ended.readline():
                            break
                    else:
                        each()
            finally:
                process.communicate()
                too_late.cancel()
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(command, process.returncode, out.read(), err.read())
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def stop_here(presses: int) -> None:
    for _ in range(presses):
        os.kill(os.getpid(), signal.SIGINT)
    if not presses:
        os.kill(os.getpid(), signal.SIGKILL)


def child(start: Start) -> None:
    import torch

    from trainer.daemon import state_machine
    from trainer.learner import base
    from trainer.learner.packed import engine as packed
    from trainer.policies import checkpoints
    from trainer.step import reporters

    torch.set_num_threads(1)
    if start.stop is not None:
        place, version = start.stop.split(":")
        write, save, optimise = state_machine.write_state, base.save_adapter, packed.PackedLearner._optimise

        def stopping_write(directory: Path, now: Any) -> None:
            write(directory, now)
            if (now.state, now.step + 1) == (place, int(version)):
                stop_here(start.presses)

        def stopping_save(directory: Path, *rest: Any) -> None:
            save(directory, *rest)
            if place == "half" and directory.name.startswith(f".policy@{version}."):
                whole = (directory / "adapter_model.safetensors").read_bytes()
                (directory / "adapter_model.safetensors").write_bytes(b"half of it")
                stop_here(start.presses)
                (directory / "adapter_model.safetensors").write_bytes(whole)

        def stopping_optimise(learner: Any, *rest: Any) -> None:
            optimise(learner, *rest)
            if (place, learner.steps + 1) == ("optimizer", int(version)):
                stop_here(start.presses)

        complete = checkpoints.Checkpoints.complete

        def stopping_complete(self: Any, step: int, *rest: Any) -> Path:
            if (place, step) == ("handed", int(version)):
                stop_here(start.presses)
            return complete(self, step, *rest)

        catch_up = reporters.Reporters.catch_up

        def stopping_catch_up(self: Any, steps: Any, *rest: Any, **named: Any) -> Any:
            if place == "report" and any(done.step == int(version) for done in steps):
                stop_here(start.presses)
            return catch_up(self, steps, *rest, **named)

        reporters.Reporters.catch_up = stopping_catch_up  # type: ignore[method-assign]
        checkpoints.Checkpoints.complete = stopping_complete  # type: ignore[method-assign]
        state_machine.write_state, base.save_adapter = stopping_write, stopping_save
        packed.PackedLearner._optimise = stopping_optimise  # type: ignore[method-assign]
    from arttrace.commands import main

    sys.argv = ["arttrace", "train", *start.arguments]
    main()


def begin(start: Start) -> None:
    ended = ended_in_a_fork(lambda: child(start))
    assert ended == start.exit, f"{start}: ended with {ended}"


if __name__ == "__main__":
    collect_garbage_seldom()  # as the command does
    import peft  # noqa: F401
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401

    import trainer.commands.train.cli
    import trainer.learner.packed.engine  # noqa: F401

    if sys.argv[2:] == ["--judge"]:
        from arttrace.rewards.judge_calls import load_litellm

        load_litellm()
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as ended:
        for line in sys.stdin:
            begin(msgspec.json.decode(line, type=Start))
            ended.write("ended\n")
