"""Each example makes a step of training: its agent plays under a real vLLM, and what it did is trained on.

All share one server and one tiny model, which is trained briefly on what their stand-ins answer: it says what they say
often enough to be rewarded differently.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from example_modules import OWN_ENVIRONMENT
from notebook import execute

import arttrace
import arttrace.loop as art
from trainer.demo.scripted import Scripted

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = {str(found.parent.relative_to(EXAMPLES)) for found in EXAMPLES.glob("**/rollout.py")}
TRAINED = tuple(sorted(FOLDERS - OWN_ENVIRONMENT))
CPU_SETTINGS = ("--tiny", "--tiny-games", "200", "--tiny-steps", "400", "--steps", "40", "--evaluate", "300")
"""Those that the README of tic-tac-toe names."""
STEPS = 100
ROUNDS = 4


@pytest.fixture(scope="module")
def program() -> Iterator[ModuleType]:
    """examples/train.py."""
    spec = importlib.util.spec_from_file_location("examples_train", EXAMPLES / "train.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["examples_train"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["examples_train"]


async def _tiny_model(tasks: dict[str, ModuleType], path: Path) -> Path:
    """One model for all of them."""
    played: list[Scripted] = []
    for task in tasks.values():
        scripted = Scripted(task.stand_in)
        with scripted.served() as url, arttrace.no_capture():
            teacher = art.Model("stand-in", inference_base_url=url, inference_api_key="unused")
            await asyncio.gather(*(task.rollout(teacher, task.scenario(2_000_000 + n)) for n in range(8)))
        played.append(scripted)
    everything = Scripted(lambda body: {}, demonstrations=[one for each in played for one in each.demonstrations])
    await asyncio.to_thread(everything.build, path, STEPS)
    return path


async def _notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the cells of 2048.ipynb print; they find the server that runs, and train by a trainer of their own."""
    folder = EXAMPLES / "2048"
    before = set(sys.modules)
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        printed = await execute(folder / "2048.ipynb")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(EXAMPLES)):
            del sys.modules[name]
    return printed


async def test_each_example_makes_a_step(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNS", "4")
    tasks = {example: program.load(example) for example in TRAINED}
    assert len(tasks) >= 7
    model = art.TrainableModel("policy", await _tiny_model(tasks, tmp_path / "tiny"))
    async with art.LocalBackend(tmp_path / "data") as backend:
        await model.register(backend)
        monkeypatch.setenv("BASE_MODEL", str(model.base_model))
        monkeypatch.setenv("ARTTRACE_DIR", str(tmp_path / "data"))
        printed = await _notebook(monkeypatch)
        assert "was trained on" in printed[-2]
        assert printed[-1] == "served: policy@1\n"
        for number, (example, task) in enumerate(tasks.items(), 2):
            for round in range(ROUNDS):  # all attempts at a scenario may end alike
                if made := await program.train(task, model, [round], groups=2, attempts=4, **program.TINY):
                    break
            else:
                pytest.fail(f"{example} made no step in {ROUNDS} rounds:\n{capsys.readouterr().out}")
            assert made == [f"policy@{number}"], example
        assert await asyncio.to_thread(model.get_step) == 1 + len(tasks)
        await program.evaluate(tasks["email"], model, 2, "the last")
    printed_all = capsys.readouterr().out
    assert "held out, the last: reward" in printed_all
    assert "accuracy" in printed_all.splitlines()[-1]


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_trained_tic_tac_toe_beats_its_start(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "train.py", "games/tic_tac_toe", *CPU_SETTINGS, "--dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3500)
    assert done.returncode == 0, done.stderr[-4000:]
    held_out = re.findall(r"^held out, policy@(\d+): .* won ([\d.]+)±([\d.]+)", done.stdout, re.MULTILINE)
    (start, won_before, error_before), (trained, won_after, error_after) = held_out
    assert (start, trained) == ("0", "40")
    assert float(won_after) - float(won_before) > 3 * math.hypot(float(error_before), float(error_after)), held_out
    assert "mean reward by step" in done.stdout
