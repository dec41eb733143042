"""Sampling: a run that is not sampled leaves nothing, and whatever is stored of a run is the whole of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from chat_server import ChatServer
from spool import finished_spans, read_spool

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.base.settings import Settings
from arttrace.capture.context import rewards
from arttrace.capture.context.flow import EMPTY_FLOW, current_flow, set_flow
from arttrace.capture.context.scope import Scope
from arttrace.capture.export import lifecycle, sampling
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.trajectory import Trajectory
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

IN, OUT = "run-1", "run-0"
"""Ids of a run that half the runs being stored includes, and of one that it does not."""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(rewards, "_warned", False)
    monkeypatch.setattr(sampling, "_warned", False)
    sampling._left_out.clear()
    sampling._buffered.clear()  # of programs that other tests made fail at their end
    yield tmp_path / "data"
    arttrace.flush()
    lifecycle.configure(Settings(DataDir(tmp_path / "after")), renew=True)
    assert not sampling._buffered


@pytest.fixture
def client(server: ChatServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="sk-test-0123456789", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, text: str = "x") -> None:
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])


def stored(data: Path) -> dict[str, Trajectory]:
    """The runs in the spool, each of them whole."""
    arttrace.flush()
    runs = {run.id: run for run in build_trajectories(finished_spans(data))}
    assert all(run.incomplete == "" for run in runs.values())
    return runs


def holds_nothing_of(data: Path, trajectory_id: str) -> bool:
    assert arttrace.shutdown()
    return all(trajectory_id.encode() not in path.read_bytes() for path in data.rglob("*") if path.is_file())


def calls(run: Trajectory) -> int:
    return len(run.calls)


def test_the_id_and_the_rate_decide() -> None:
    assert (sampling.is_sampled(IN, 0.5), sampling.is_sampled(OUT, 0.5)) == (True, False)
    ids = [f"run-{number}" for number in range(10_000)]
    assert not any(sampling.is_sampled(id, 0) for id in ids)
    assert all(sampling.is_sampled(id, 1) for id in ids)
    tenth = {id for id in ids if sampling.is_sampled(id, 0.1)}
    assert 900 < len(tenth) < 1100
    assert tenth < {id for id in ids if sampling.is_sampled(id, 0.5)}
    assert sampling.is_sampled("\ud800", 1)


@pytest.mark.parametrize(("rate", "expected"), [(0, set()), (1, {IN, OUT}), (0.5, {IN}), (True, {IN, OUT})])
def test_a_rate_stores_whole_runs_and_nothing_of_the_others(
    rate: float, expected: set[str], data: Path, client: openai.OpenAI
) -> None:
    arttrace.init(dir=data, sample=rate)
    before = lifecycle.counts().left_out
    for id in (IN, OUT):
        with arttrace.trajectory(name="agent", trajectory_id=id):
            ask(client)
            with arttrace.agent(name="inner"):
                ask(client)
    runs = stored(data)
    assert runs.keys() == expected
    assert all(calls(run) == 2 for run in runs.values())
    assert lifecycle.counts().left_out - before == 2 - len(expected)
    assert all(holds_nothing_of(data, id) for id in {IN, OUT} - expected)


def test_the_environment_gives_the_rate_and_what_is_none_stores_all(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ARTTRACE_SAMPLE", "0.25")
    assert Settings.resolve(dir=data).sample == 0.25
    assert Settings.resolve(dir=data, sample=0).sample == 0
    assert not caplog.records
    for odd in ("1.5", "-1", "nan", "ten percent"):
        monkeypatch.setenv("ARTTRACE_SAMPLE", odd)
        assert Settings.resolve(dir=data).sample == 1
    odd_type: Any = [0.1]
    assert Settings.resolve(dir=data, sample=odd_type).sample == 1
    assert len(caplog.records) == 5


def test_a_rule_is_asked_with_what_is_known_at_the_beginning(data: Path) -> None:
    asked = []

    def rule(run: sampling.BeginningRun) -> bool | float:
        asked.append(run)
        return "vip" in run.tags or (0.5 if run.metadata.get("half") else False)

    arttrace.init(dir=data, sample=rule)
    given: list[dict[str, Any]] = [
        {"trajectory_id": "a", "tags": ["vip"]},
        {"trajectory_id": "b"},
        {"trajectory_id": IN, "metadata": {"half": [1]}},
        {"trajectory_id": OUT, "metadata": {"half": [1]}},
    ]
    for each in given:
        with arttrace.trajectory(name="agent", **each), arttrace.trajectory(name="a sub-agent"):
            pass
    assert stored(data).keys() == {"a", IN}
    assert asked[0] == sampling.BeginningRun("a", "agent", ("vip",), {})
    assert asked[2] == sampling.BeginningRun(IN, "agent", (), {"half": [1]})
    assert len(asked) == 4


@pytest.mark.parametrize("answer", [ZeroDivisionError(), 2, None, float("nan"), "often"], ids=repr)
def test_a_rule_that_fails_stores_the_run_and_is_counted(
    answer: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARTTRACE_RAISE")
    guard.failures.clear()

    def rule(_: sampling.BeginningRun) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    arttrace.init(dir=data, sample=rule)
    with arttrace.trajectory(name="agent") as run:
        pass
    assert stored(data).keys() == {run.id}
    assert guard.failures == {"deciding whether a run is sampled": 1}


PROGRAM = """
import sys
import openai
import arttrace

client = openai.OpenAI(base_url=sys.argv[1], api_key="sk-test-0123456789", max_retries=0)

def ask(text):
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])

def asking(value, **_):
    arttrace.update(tags=["of a rule"])
    ask("in the rule")
    return value if sys.argv[2] == "mask" else True

arttrace.init(**{sys.argv[2]: asking})
ask("x")
arttrace.flush()
arttrace.flush()
"""


@pytest.mark.parametrize("rule", ["sample", "mask"])
def test_a_rule_may_make_calls_of_its_own(rule: str, server: ChatServer, tmp_path: Path) -> None:
    """One of sampling waited for itself for ever, and a mask was asked about the calls that it made."""
    program = tmp_path / "agent.py"
    program.write_text(PROGRAM)
    start = "from arttrace.commands import main; main()"
    command = [sys.executable, "-c", start, "run", "--dir", str(tmp_path / "d"), "--", str(program), server.url, rule]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    [run] = stored(tmp_path / "d").values()
    assert calls(run) == 1


def test_an_error_keeps_the_run_whole(data: Path, client: openai.OpenAI) -> None:
    arttrace.init(dir=data, sample=0)

    @arttrace.trajectory(name="agent")
    def failing() -> None:
        ask(client)
        with arttrace.tool(name="look"):
            pass
        raise KeyError("x")

    with pytest.raises(KeyError):
        failing()
    with arttrace.trajectory(name="agent", trajectory_id="recovered"):
        with pytest.raises(KeyError), arttrace.tool(name="look"):
            raise KeyError("x")
        ask(client)
    (run,) = stored(data).values()
    assert calls(run) == 1
    names = {span.name for span in finished_spans(data)}
    assert names == {"chat m", "execute_tool look", "invoke_agent agent"}


@pytest.mark.parametrize("by_id", [False, True])
def test_a_reward_before_the_end_keeps_the_run_whole(by_id: bool, data: Path, client: openai.OpenAI) -> None:
    arttrace.init(dir=data, sample=0)
    with arttrace.trajectory(name="agent") as run:
        ask(client)
        arttrace.flush()
        assert read_spool(data) == []
        arttrace.reward(1, trajectory_id=run.id if by_id else None)
        ask(client)
    runs = stored(data)
    assert runs.keys() == {run.id}
    assert calls(runs[run.id]) == 2
    assert [record.value for record in read_spool(data) if isinstance(record, Reward)] == [1.0]


def test_a_reward_after_the_end_is_reported_as_what_it_is(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    arttrace.init(dir=data, sample=0)
    with arttrace.trajectory(name="agent") as run:
        pass
    arttrace.flush()
    for _ in range(2):
        arttrace.reward(1, trajectory_id=run.id)
    run.reward(1)
    (record,) = caplog.records
    assert f"{run.id!r} was left out by sampling" in record.getMessage()
    assert holds_nothing_of(data, run.id)
    arttrace.reward(1, trajectory_id="of another process")
    assert "one that `sample` left out never comes" in caplog.records[-1].getMessage()


def test_runs_side_by_side_are_decided_on_each_by_itself(data: Path, server: ChatServer, client: openai.OpenAI) -> None:
    arttrace.init(dir=data, sample=0)
    several = openai.AsyncOpenAI(base_url=server.url, api_key="sk-test-0123456789", max_retries=0)

    async def one(number: int) -> None:
        with arttrace.trajectory(name="agent", trajectory_id=f"task {number}"):
            for _ in range(3):
                await several.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
            if number % 3 == 0:
                arttrace.reward(number)

    async def all_of_them() -> None:
        async with several:
            await asyncio.gather(*map(one, range(9)))

    def in_a_thread(number: int) -> None:
        with arttrace.trajectory(name="agent", trajectory_id=f"thread {number}"):
            ask(client)
            if number % 2:
                scope = current_flow().scope
                assert isinstance(scope, Scope)
                scope.failed("Odd", "odd")
            ask(client)

    asyncio.run(all_of_them())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(in_a_thread, range(8)))
    runs = stored(data)
    assert runs.keys() == {f"task {number}" for number in (0, 3, 6)} | {f"thread {number}" for number in (1, 3, 5, 7)}
    assert {id: calls(run) for id, run in runs.items()} == {id: 3 if id.startswith("task") else 2 for id in runs}


@pytest.mark.parametrize("kept", [False, True])
def test_a_stream_that_outlives_its_run_goes_with_it(kept: bool, data: Path, client: openai.OpenAI) -> None:
    arttrace.init(dir=data, sample=0)
    with arttrace.trajectory(name="agent") as run:
        stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
        read = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
        assert list(read)
        if kept:
            arttrace.reward(1)
    arttrace.flush()
    assert list(stream)
    arttrace.flush()
    assert sum(span.name == "chat m" for span in finished_spans(data)) == (2 if kept else 0)
    assert kept or holds_nothing_of(data, run.id)


def test_beyond_the_bound_the_run_held_longest_is_kept_whole(
    data: Path, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MAX_BUFFERED_BYTES", 100_000)
    arttrace.init(dir=data, sample=0)

    def short() -> None:
        set_flow(EMPTY_FLOW)
        with arttrace.trajectory(name="agent", trajectory_id="short"):
            ask(client)

    with arttrace.trajectory(name="agent", trajectory_id="long"):
        for _ in range(2):
            ask(client, "x" * 20_000)
        arttrace.flush()
        assert read_spool(data) == []
        other = threading.Thread(target=short)  # a flow of its own: a run beside this one
        other.start()
        other.join()
        for _ in range(6):
            ask(client, "x" * 20_000)
        arttrace.flush()
        assert lifecycle.recorder()._buffer._bytes == 0
        assert finished_spans(data)
        ask(client)
    runs = stored(data)
    assert runs.keys() == {"long"}
    assert calls(runs["long"]) == 9


def test_a_run_that_lasts_is_not_shown_before_it_is_kept(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.capture.export.recorder._SHOWN_AFTER_S", 0.0)
    arttrace.init(dir=data, sample=0)
    with arttrace.trajectory(name="agent") as run:
        while lifecycle.recorder()._open:
            lifecycle.recorder().submit(list)
            arttrace.flush()
        assert read_spool(data) == []
    assert holds_nothing_of(data, run.id)


def test_init_again_in_the_middle_of_a_run_changes_nothing_for_it(
    data: Path, client: openai.OpenAI, tmp_path: Path
) -> None:
    for kept in (False, True):
        arttrace.init(dir=data, sample=0)
        with arttrace.trajectory(name="agent") as run:
            ask(client)
            arttrace.init(dir=tmp_path / "another", sample=0)
            with arttrace.agent(name="inner"):
                ask(client)
            if kept:
                arttrace.reward(1)
        for recorder in lifecycle._all():
            recorder.flush()
        found = [span for root in (data, tmp_path / "another") for span in finished_spans(root)]
        assert [span for span in found if span.attributes[semconv.TRAJECTORY_ID] != run.id] == []
        assert len(found) == (4 if kept else 0)


def test_a_rollout_is_never_left_out(data: Path) -> None:
    arttrace.init(dir=data, sample=0)
    arttrace.run_entry(lambda: None, {}, trajectory_id="rollout")
    assert stored(data).keys() == {"rollout"}


def test_what_is_shipped_has_nothing_of_it(data: Path, client: openai.OpenAI) -> None:
    arttrace.init(dir=data, sample=0.5, endpoint="http://127.0.0.1:9")
    for id in (IN, OUT):
        with arttrace.trajectory(name="agent", trajectory_id=id):
            ask(client)
    arttrace.flush()
    outbox = b"".join(path.read_bytes() for path in DataDir(data).outbox.rglob("*") if path.is_file())
    assert IN.encode() in outbox
    assert OUT.encode() not in outbox


def rule(data: Path) -> None:
    arttrace.init(dir=data, sample=lambda run: 1 if "whole" in run.tags else 0)


@pytest.mark.parametrize("setting", ["the rule", "the rate", "a rule that fails"])
def test_a_run_that_is_sampled_is_stored_though_an_earlier_one_of_its_id_was_left_out(
    setting: str, data: Path, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting == "a rule that fails":
        monkeypatch.delenv("ARTTRACE_RAISE")
    rule(data)
    with arttrace.trajectory(name="agent", trajectory_id=OUT):
        ask(client)
    assert stored(data) == {}
    if setting != "the rule":
        arttrace.init(dir=data, sample=1 if setting == "the rate" else lambda run: {}["no such"])
    with arttrace.trajectory(name="agent", trajectory_id=OUT, tags=("whole",)):
        ask(client)
    assert {id: calls(run) for id, run in stored(data).items()} == {OUT: 1}


def test_a_run_that_is_sampled_is_stored_though_another_of_its_id_ends_first(data: Path, client: openai.OpenAI) -> None:
    rule(data)
    begun, ended = threading.Event(), threading.Event()

    def left_out() -> None:
        with arttrace.trajectory(name="agent", trajectory_id=OUT):
            begun.set()
            assert ended.wait(60)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(left_out)
        assert begun.wait(60)
        with arttrace.trajectory(name="agent", trajectory_id=OUT, tags=("whole",)):
            ask(client)
            ended.set()
            first.result(60)
            arttrace.flush()
            ask(client)
    arttrace.flush()
    assert sum(semconv.REQUEST_MODEL in span.attributes for span in finished_spans(data)) == 2


def test_a_run_that_fails_is_stored_though_another_of_its_id_with_parts_elsewhere_ends_first(
    data: Path, client: openai.OpenAI
) -> None:
    arttrace.init(dir=data, sample=0)
    begun, go_on = threading.Event(), threading.Event()

    def with_parts_elsewhere() -> None:
        with arttrace.trajectory(name="agent", trajectory_id=OUT):
            sampling.join(OUT)
            begun.set()
            assert go_on.wait(60)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(with_parts_elsewhere)
        assert begun.wait(60)
        second = arttrace.trajectory(name="agent", trajectory_id=OUT)
        second.__enter__()
        go_on.set()
        first.result(60)
        arttrace.flush()
        ask(client)
        second.__exit__(KeyError, KeyError("wrong"), None)
    arttrace.flush()
    spans = finished_spans(data)
    assert sum(semconv.REQUEST_MODEL in span.attributes for span in spans) == 1
    assert not any(span.attributes.get(semconv.OPERATION_NAME) == semconv.OPERATION_LEFT_OUT for span in spans)
