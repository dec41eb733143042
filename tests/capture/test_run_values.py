"""What is recorded of a run beside its calls: arguments, results, groups and rewards, bounded and never consumed."""

from __future__ import annotations

import asyncio
import functools
import json
import reprlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.base.settings import MAX_WAITING_BYTES, Settings
from arttrace.capture.context import rewards as known_runs
from arttrace.capture.export import lifecycle
from arttrace.capture.export.recorder import Recorder
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.system.paths import DataDir

Spans = Callable[[], list[SpanRow]]


@arttrace.trajectory
def module_level(x: int, y: int = 2) -> int:
    """Adds."""
    return x + y


def arguments(span: SpanRow) -> Any:
    return json.loads(span.attributes[semconv.ENTRY_ARGUMENTS])


def test_values_of_any_kind_are_recorded_or_named_and_never_consumed(spans: Spans) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    @arttrace.trajectory
    def takes(**values: Any) -> Any:
        return values

    loop: list[Any] = []
    loop.append(loop)
    once = iter([1, 2])
    takes(odd=Odd(), loop=loop, once=once, keys={(1, 2): 3}, number=float("nan"), self=1, good={"a": [1]})
    assert list(once) == [1, 2]
    (span,) = spans()
    recorded = arguments(span)["values"]
    assert recorded["odd"].endswith("Odd>")
    assert recorded["once"].startswith("<list_iterator")
    assert (recorded["loop"], recorded["keys"], recorded["number"]) == ("[[...]]", {"(1, 2)": 3}, None)
    assert (recorded["self"], recorded["good"]) == (1, {"a": [1]})


def test_half_a_surrogate_pair_costs_no_more_than_itself(spans: Spans) -> None:
    """As json.loads makes one of a model's answer that was cut inside an emoji."""
    half, long = "\ud83d", "x" * 5000

    @arttrace.trajectory(metadata={half: {half: half}}, tags=[half])
    def takes(**values: Any) -> Any:
        arttrace.update(metadata={f"{half}2": half})
        return values

    takes(text=half + long, nested={half: [{"a": half}]}, **{half: 1})
    (span,) = spans()
    assert arguments(span)["values"] == {"text": "\ufffd" + long, "nested": {"\ufffd": [{"a": "\ufffd"}]}, "\ufffd": 1}
    assert json.loads(span.attributes[semconv.METADATA]) == {"\ufffd": {"\ufffd": "\ufffd"}, "\ufffd2": "\ufffd"}
    assert semconv.ENTRY_ARGUMENTS in span.attributes[semconv.DESCRIBED]  # a replay would be given something else


def test_a_value_over_the_bound_is_cut_and_said_to_be(spans: Spans) -> None:
    @arttrace.trajectory
    def takes(text: str, more: int) -> str:
        return text

    takes("x" * (9 << 20), 1)
    (span,) = spans()
    assert set(span.attributes[semconv.TRUNCATED]) == {semconv.ENTRY_ARGUMENTS, semconv.ENTRY_RESULT}
    assert arguments(span)["text"].startswith('"xxx')
    assert len(span.attributes[semconv.ENTRY_ARGUMENTS]) < (8 << 20) + 100


def test_a_group_callable_that_fails_costs_only_the_group(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")

    @arttrace.trajectory(group=lambda x: x.missing)
    def entry(x: int) -> int:
        return x

    assert entry(1) == 1
    (span,) = spans()
    assert semconv.GROUP not in span.attributes
    assert arguments(span) == {"x": 1}


def test_run_entry_gives_a_rollouts_values_to_whatever_the_entry_is(spans: Spans) -> None:
    def other_decorator(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return await fn(*args, **kwargs)

        return wrapper

    @other_decorator
    @arttrace.trajectory(name="named", scenario="own", metadata={"a": 1})
    async def below(n: int) -> int:
        return module_level(n)

    async def undecorated(n: int) -> int:
        return n

    given: Any = {"scenario": "given", "group": "g", "metadata": {"b": 2}}
    assert asyncio.run(arttrace.run_entry(below, {"n": 1}, trajectory_id="T1", **given)) == 3
    assert asyncio.run(arttrace.run_entry(undecorated, {"n": 2}, trajectory_id="T2")) == 2
    assert arttrace.run_entry(module_level, {"x": 1}, trajectory_id="T3") == 3
    assert module_level(5) == 7
    nested, *roots, after = spans()
    named, plain, direct = roots
    assert nested.attributes[semconv.TRAJECTORY_ID] == "T1"
    assert nested.parent_span_id == named.span_id
    assert [root.attributes[semconv.TRAJECTORY_ID] for root in roots] == ["T1", "T2", "T3"]
    assert named.name == "invoke_agent named"
    assert named.attributes[semconv.SCENARIO] == "given"
    assert named.attributes[semconv.GROUP] == "g"
    assert json.loads(named.attributes[semconv.METADATA]) == {"a": 1, "b": 2}
    assert (plain.name, direct.name) == ("invoke_agent undecorated", "invoke_agent module_level")
    assert after.attributes[semconv.TRAJECTORY_ID] not in ("T1", "T2", "T3")


def test_a_reward_by_id_and_one_without_a_run(
    records: Callable[[], list[Record]], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_runs, "_warned", True)
    arttrace.reward(1, trajectory_id="abc")
    arttrace.reward(2)
    arttrace.reward(3, name="", trajectory_id="abc")
    arttrace.reward(float("nan"), trajectory_id="abc")
    given = [(one.trajectory_id, one.value, one.name) for one in records() if isinstance(one, Reward)]
    assert given == [("abc", 1.0, "reward"), ("abc", 3.0, "reward")]
    assert len(caplog.records) == 2


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 10**400, None, "much", [1]], ids=range(6))
def test_a_reward_that_is_no_finite_number_is_logged_in_one_line(
    value: Any, records: Callable[[], list[Record]], caplog: Any
) -> None:
    with arttrace.trajectory(name="x") as run:
        run.reward(value, name="speed")
        arttrace.reward(1)
    assert [one.value for one in records() if isinstance(one, Reward)] == [1.0]
    assert [record.getMessage() for record in caplog.records] == [
        f"arttrace: the reward 'speed' of run {run.id!r} is {reprlib.repr(value)}, not a finite number, and was not "
        "recorded: the run counts by its other rewards, if it has any"
    ]
    assert caplog.records[0].exc_info is None


def test_a_reward_for_a_run_that_nobody_knows_is_kept_and_reported_once(
    records: Callable[[], list[Record]], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_runs, "_warned", False)
    with arttrace.trajectory(name="x") as run:
        pass
    arttrace.reward(1, trajectory_id=run.id)
    assert not caplog.records
    arttrace.reward(2, trajectory_id="mistyped")
    arttrace.reward(3, trajectory_id="another")
    assert [record.getMessage().split(":")[1] for record in caplog.records] == [
        " no run 'mistyped' is known in this process"
    ]
    rewards = [record for record in records() if isinstance(record, Reward)]
    assert [(reward.trajectory_id, reward.value) for reward in rewards] == [
        (run.id, 1.0),
        ("mistyped", 2.0),
        ("another", 3.0),
    ]


def test_calls_that_wait_for_a_disk_that_hangs_are_bounded_and_counted(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    guard.failures.clear()
    recorder = Recorder(Settings(DataDir(tmp_path)))
    disk = threading.Event()
    ran: list[int] = []
    recorder.submit(lambda: disk.wait(10) and None, weight=MAX_WAITING_BYTES // 2)
    recorder.submit(lambda: ran.append(1), weight=MAX_WAITING_BYTES // 2)
    recorder.submit(lambda: ran.append(2), weight=1)
    recorder.submit(lambda: ran.append(3))
    disk.set()
    assert recorder.flush(60)
    assert ran == [1, 3]
    assert guard.failures["keeping up with the calls"] == 1
    recorder.submit(lambda: ran.append(4), weight=MAX_WAITING_BYTES)
    assert recorder.close(10)
    assert ran == [1, 3, 4]


def test_the_handle_of_a_run_shows_the_same_five_names_where_nothing_is_recorded() -> None:
    def public(handle: object) -> list[str]:
        return [name for name in dir(handle) if not name.startswith("_")]

    with arttrace.trajectory(name="run") as run:
        current = arttrace.current_trajectory()
        with arttrace.tool(name="tool") as tool:
            pass
    with arttrace.no_capture(), arttrace.trajectory(name="not recorded") as disabled:
        disabled.set_arguments(x=1)
        disabled.set_result(2)
        disabled.update(metadata={"a": 1}, tags=["b"])
        disabled.reward(1.0)
        assert disabled.id == ""
    assert public(run) == ["id", "reward", "set_arguments", "set_result", "update"]
    assert public(run) == public(tool) == public(disabled) == public(current)
    assert dir(run) == dir(disabled)
    assert current is run


def test_what_tools_return_is_bounded_while_it_waits_too(
    spans: Spans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    monkeypatch.setattr("arttrace.capture.export.recorder.MAX_WAITING_BYTES", 5000)
    guard.failures.clear()
    disk = threading.Event()
    with arttrace.trajectory(name="run"):
        lifecycle.recorder().submit(lambda: disk.wait(60))
        for number in range(5):
            with arttrace.tool(name=f"tool {number}") as tool:
                tool.set_result("x" * 2000)
    disk.set()
    assert [span.name for span in spans()] == ["execute_tool tool 0", "execute_tool tool 1", "invoke_agent run"]
    assert "keeping up with the calls failed (over 5000 bytes wait to be written)" in caplog.text
    assert guard.failures["keeping up with the calls"] == 3
