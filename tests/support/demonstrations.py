"""What an example's stand-in answers its agent. As a program, for the Python of an example that has an environment of
its own: `demonstrations.py EXAMPLE FILE ARGUMENT...` writes it as JSON. Then it prints a line and waits for one: it
goes on as `train.py EXAMPLE ARGUMENT...`, for which the example's packages are imported."""

from __future__ import annotations

import asyncio
import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType

import msgspec
from example_modules import EXAMPLES

import arttrace
import arttrace.loop as art
from trainer.demo.model.demonstrations import Demonstration
from trainer.demo.scripted import Scripted


def train_program() -> ModuleType:
    """examples/train.py."""
    spec = importlib.util.spec_from_file_location("examples_train", EXAMPLES / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def demonstrations(task: ModuleType, rollouts: int = 8) -> list[Demonstration]:
    """Of so many rollouts of an example's task."""
    scripted = Scripted(task.stand_in)
    with scripted.served() as url, arttrace.no_capture():
        teacher = art.Model("stand-in", inference_base_url=url, inference_api_key="unused")
        await asyncio.gather(*(task.rollout(teacher, task.scenario(2_000_000 + n)) for n in range(rollouts)))
    return scripted.demonstrations


def read(file: Path) -> list[Demonstration]:
    """What the program wrote."""
    return msgspec.json.decode(file.read_bytes(), type=list[Demonstration])


if __name__ == "__main__":
    example, file, *arguments = sys.argv[1:]
    Path(file).write_bytes(msgspec.json.encode(asyncio.run(demonstrations(train_program().load(example)))))
    print("written", flush=True)
    if sys.stdin.readline():
        program = str(EXAMPLES / "train.py")
        sys.argv = [program, example, *arguments]
        sys.path[0] = str(EXAMPLES)
        runpy.run_path(program, run_name="__main__")
