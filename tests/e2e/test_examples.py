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
TRAINED_ON_CPU = {
    "games/tic_tac_toe": ("won", "--tiny-games 200 --tiny-steps 400 --steps 40 --evaluate 300"),
    "email": ("accuracy", "--tiny-games 1000 --tiny-steps 400 --steps 60 --evaluate 200"),
}
"""What is to be better afterwards, beside the reward, and the settings that the example's README names."""
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
@pytest.mark.parametrize("example", TRAINED_ON_CPU)
def test_a_trained_policy_beats_its_start(example: str, tmp_path: Path) -> None:
    measure, settings = TRAINED_ON_CPU[example]
    options = ["--tiny", *settings.split()]
    assert f"train.py {example} {' '.join(options)}\n" in (EXAMPLES / example / "README.md").read_text(encoding="utf-8")
    command = [sys.executable, EXAMPLES / "train.py", example, *options, "--dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3500)
    assert done.returncode == 0, done.stderr[-4000:]
    start, trained = re.findall(r"^held out, policy@(\d+): (.*)", done.stdout, re.MULTILINE)
    assert start[0] == "0"
    assert f" --steps {trained[0]} " in settings
    for figure in ("reward", measure):
        before, after = (re.search(rf"\b{figure} ([\d.-]+)±([\d.]+)", line) for _, line in (start, trained))
        assert before
        assert after
        gained, error = float(after[1]) - float(before[1]), math.hypot(float(before[2]), float(after[2]))
        assert gained > 3 * error, done.stdout
    assert "mean reward by step" in done.stdout
