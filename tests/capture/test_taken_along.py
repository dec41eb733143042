"""Decorated and hooked functions that are copied, pickled, taken along by what they consist of: as functions are."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from joined_program import run
from spool import read_spans

import arttrace
from arttrace.capture.patches import registry
from arttrace.trajectories import build_trajectories


@arttrace.tool
def look(x: int) -> int:
    return x


class Agent:
    def __init__(self) -> None:
        self.tools: Any = [look, self.method]

    @arttrace.agent
    def method(self, x: int) -> int:
        return x

    @classmethod
    @arttrace.agent
    def class_method(cls, x: int) -> int:
        return x

    @staticmethod
    @arttrace.tool
    def static_method(x: int) -> int:
        return x


class Adder:
    def __init__(self) -> None:
        self.added = [1]

    def __call__(self, x: int) -> int:
        return x + len(self.added)


EACH: dict[str, Any] = {
    "function": look,
    "method": Agent().method,
    "class method": Agent.class_method,
    "static method": Agent.static_method,
    "quiet function": arttrace.no_capture()(len),
}


@pytest.mark.parametrize(
    ("module", "name"),
    [(os, "system"), (os, "kill"), (os, "_exit"), (os, "execv"), (os, "posix_spawn"), (signal, "raise_signal")],
)
def test_a_function_of_the_system_that_is_hooked_goes_to_other_processes(module: Any, name: str) -> None:
    """`Pool.map(os.system, commands)` pickles it, by the module that it says it is of: the hook is in another one."""
    function = getattr(module, name)  # the hook of now: an earlier test may have taken out that of the import
    assert pickle.loads(pickle.dumps(function)) is function


def test_so_does_one_that_another_library_has_put_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logfire's `os._exit` goes by another name."""
    module: Any = ModuleType("a_module_of_theirs")
    module.leave = build_trajectories
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(registry, "_patches", [])
    registry.patch(module, "leave", lambda inside: wraps(inside)(lambda x: x))
    assert pickle.loads(pickle.dumps(module.leave)) is module.leave


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.parametrize("name", [name for name in EACH if name != "quiet function"])
def test_it_is_copied_and_pickled(name: str, how: Any) -> None:
    copied = how(EACH[name])
    assert copied(7) == 7
    assert type(copied) is type(EACH[name])


def test_what_holds_it_is_copied_with_its_own_methods() -> None:
    agent = Agent()
    other = copy.deepcopy(agent)
    assert other.tools[0] is look
    assert other.tools[1].__self__ is other
    assert pickle.loads(pickle.dumps(Agent.method))(other, 7) == 7
    assert copy.deepcopy(EACH["quiet function"]) is EACH["quiet function"]


def test_an_object_that_is_decorated_is_copied_as_it_would_be() -> None:
    adder = Adder()
    decorated = arttrace.tool(adder)
    copied = copy.deepcopy(decorated)
    adder.added.append(2)
    assert (decorated(1), copied(1)) == (3, 2)


def test_one_that_cannot_be_named_says_so_as_a_function_does() -> None:
    @arttrace.tool
    def local() -> None: ...

    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(local)


SENT = """
import subprocess, sys
import cloudpickle
import arttrace
def named(names, **options):
    @arttrace.tool(name="look up")
    def local(x):
        return names[x]
    return local
local = named({1: "one", 2: "two"})
@arttrace.trajectory(group=lambda x: f"group {x}", scenario=5)
def answer(x):
    return answer_again(x) if x > 1 else local(x)
def answer_again(x):
    return answer(x - 1)
class Agent:
    @arttrace.trajectory
    def run(self, x):
        return local(x)
if __name__ == "__main__":
    without = "sys.modules['arttrace'] = None; " if sys.argv[1:] else ""
    other = f"import pickle, sys; {without}print(*(each(2) for each in pickle.load(sys.stdin.buffer)))"
    sent = cloudpickle.dumps([answer, Agent().run])
    done = subprocess.run([sys.executable, "-c", other], input=sent, capture_output=True, check=False)
    print((done.stdout + done.stderr).decode())
"""


def test_one_of_the_main_program_is_recorded_where_cloudpickle_takes_it(tmp_path: Path) -> None:
    """As joblib, loky, Ray and Dask do."""
    assert run(SENT, tmp_path).split() == ["one", "two"]
    first, second = sorted(build_trajectories(read_spans(tmp_path / "d")), key=lambda each: each.entry_name)
    assert [first.entry_name, second.entry_name] == ["program:Agent.run", "program:answer"]
    assert (second.group, second.scenario) == ("group 2", "5")
    assert [[tool.name for tool in each.tool_calls] for each in (first, second)] == [["look up"], ["look up"]]
    assert [agent.name for agent in second.agents] == ["answer", "answer"]


def test_where_arttrace_is_missing_it_runs_undecorated(tmp_path: Path) -> None:
    assert run(SENT, tmp_path, "without").split() == ["one", "two"]
    assert not (tmp_path / "d").exists()
