"""The real daemon command in processes that are killed (SIGKILL) where they are told to.

    python killed_daemon.py ROOT STATE:STEP,... ARGUMENT...

runs `arttrace train --daemon ARGUMENT...` on ROOT/undisturbed, then on ROOT/killed: there, as it has written that it is
in STATE while version STEP is in the making, it is killed, and started again for the next of the list, at last to run
to its end. "half" is the middle of writing the checkpoint. Every start is a fork of one process that has done the slow
imports.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any


def child(kill: str | None, arguments: list[str]) -> None:
    import torch

    if sys.platform == "linux":  # never left behind
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    from trainer.daemon import machine
    from trainer.learner import base

    torch.set_num_threads(1)
    if kill is not None:
        state, step = kill.split(":")
        write, save = machine.write_state, base.save_state

        def killing_write(directory: Path, now: Any) -> None:
            write(directory, now)
            if (now.state, now.step + 1) == (state, int(step)):
                os.kill(os.getpid(), signal.SIGKILL)

        def killing_save(directory: Path, *rest: Any) -> None:
            save(directory, *rest)
            if state == "half" and directory.name.startswith(f".policy@{step}."):
                (directory / "adapter_model.safetensors").write_bytes(b"half of it")
                os.kill(os.getpid(), signal.SIGKILL)

        machine.write_state, base.save_state = killing_write, killing_save
    from arttrace.commands import cli

    cli.main(["train", *arguments], standalone_mode=False)


def start(kill: str | None, arguments: list[str]) -> None:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            child(kill, arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    expected = -signal.SIGKILL if kill else 0
    assert os.waitstatus_to_exitcode(status) == expected, f"{kill}: ended with {status}"


def main() -> None:
    root, kills, arguments = Path(sys.argv[1]), sys.argv[2].split(","), ["--daemon", *sys.argv[3:]]
    import peft  # noqa: F401
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401

    import trainer.commands.train
    import trainer.learner.packed  # noqa: F401
    from arttrace.rewards.judge import load_litellm

    load_litellm()
    start(None, [*arguments, "--dir", str(root / "undisturbed")])
    for kill in [*kills, None]:
        start(kill, [*arguments, "--dir", str(root / "killed")])


if __name__ == "__main__":
    main()
