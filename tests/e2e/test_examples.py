"""Each example makes a step of training: its agent plays under a real vLLM, and what it did is trained on.

All share one server and one tiny model, which is trained briefly on what their stand-ins answer: it says what they say
often enough to be rewarded differently.
"""

from __future__ import annotations

import asyncio
import math
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import pytest
from demonstrations import EXAMPLES, demonstrations, read, train_program
from example_modules import OWN_ENVIRONMENT
from notebook import execute
from own_environment import environment

import arttrace.loop as art
from trainer.demo.model.demonstrations import Demonstration
from trainer.demo.scripted import Scripted

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

FOLDERS = {str(found.parent.relative_to(EXAMPLES)) for found in EXAMPLES.glob("**/rollout.py")}
[OWN] = OWN_ENVIRONMENT
TRAINED = tuple(sorted(FOLDERS - OWN_ENVIRONMENT))
TRAINED_ON_CPU = {
    "games/tic_tac_toe": ("won", "--tiny-games 200 --tiny-steps 400 --steps 40 --evaluate 300"),
    "email": ("accuracy", "--tiny-games 1000 --tiny-steps 400 --steps 60 --evaluate 200"),
}
"""What is to be better afterwards, beside the reward, and the settings that the example's README names."""
PROGRAM = Path(__file__).parents[1] / "support" / "demonstrations.py"
STEPS = 100
ROUNDS = 4


async def _tiny_model(answered: Iterable[Demonstration], path: Path) -> Path:
    """One model for all of them."""
    everything = Scripted(lambda body: {}, demonstrations=list(answered))
    await asyncio.to_thread(everything.build, path, STEPS)
    return path


async def _notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the cells of 2048.ipynb print; they find the server that runs, and the trainer of this process, which they
    stop."""
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


class _OwnEnvironment:
    """The example with an environment of its own: first what its stand-in answers there, then its training. Both in one
    process, which imports its packages for both."""

    def __init__(self, python: Path, data: Path) -> None:
        self._file = data.parent / "demonstrations.json"
        self._err = (data.parent / "own.err").open("w+")
        settings = ["--tiny", "--steps", str(ROUNDS), "--groups", "2", "--attempts", "4", "--dir", data]
        command = [python, PROGRAM, OWN, self._file, *settings]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._err, text=True
        )

    def demonstrations(self) -> list[Demonstration]:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "written\n", self._said()
        return read(self._file)

    def steps(self) -> list[str]:
        """Train as the command of its README does, under the server that runs, up to ROUNDS rounds. What it printed of
        each that made a step."""
        printed, _ = self._process.communicate("train\n", timeout=600)
        assert self._process.returncode == 0, self._said()
        return re.findall(r"^policy@\d+: reward .*", printed, re.MULTILINE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        self._err.close()

    def _said(self) -> str:
        self._err.seek(0)
        return self._err.read()[-6000:]


async def test_each_example_makes_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNS", "4")
    program = train_program()
    tasks = {example: program.load(example) for example in TRAINED}
    assert len(tasks) >= 7
    python = environment(OWN, tmp_path / "environment")
    with _OwnEnvironment(python, tmp_path / "data") as own:
        answered = [one for task in tasks.values() for one in await demonstrations(task)]
        answered += own.demonstrations()
        tiny = tmp_path / "data" / f"tiny-{Path(OWN).name}-400-800"  # where `train.py --tiny` of that example finds it
        model = art.TrainableModel("policy", await _tiny_model(answered, tiny))
        async with art.LocalBackend(tmp_path / "data") as backend:
            await model.register(backend)
            made_alone = await asyncio.to_thread(own.steps)
            assert made_alone, OWN
            done = await asyncio.to_thread(model.get_step)
            assert done == len(made_alone)
            for number, (example, task) in enumerate(tasks.items(), done + 1):
                for round in range(ROUNDS):  # all attempts at a scenario may end alike
                    if made := await program.train(task, model, [round], groups=2, attempts=4, **program.TINY):
                        break
                else:
                    pytest.fail(f"{example} made no step in {ROUNDS} rounds:\n{capsys.readouterr().out}")
                assert made == [f"policy@{number}"], example
            assert await asyncio.to_thread(model.get_step) == done + len(tasks)
            await program.evaluate(tasks["email"], model, 2, "the last")
            monkeypatch.setenv("BASE_MODEL", str(model.base_model))
            monkeypatch.setenv("ARTTRACE_DIR", str(tmp_path / "data"))
            printed = await _notebook(monkeypatch)
            assert "was trained on" in printed[-2]
            assert printed[-1] == f"served: policy@{done + len(tasks) + 1}\n"
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
