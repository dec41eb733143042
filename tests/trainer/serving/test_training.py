"""Training on order, over real HTTP with a stand-in engine and a stand-in trainer: what the desk accepts and refuses,
what waits meanwhile, and what a client hears."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gateway_site import Site, gateway_at
from lost_span import WHY, lose_a_call
from reserved_port import reserved_port

import arttrace
import arttrace.loop as art
from arttrace.loop.processes.trainer_process import (
    LoggedNumbers,
    OrderedBatch,
    OrderedGroup,
    TrainedStep,
    TrainerProcess,
)
from arttrace.loop.remote.connection import ServerConnection
from arttrace.store import open_store
from arttrace.system.errors import ArttraceError, ServingError, TrainingError
from arttrace.system.paths import DataDir
from trainer.gateway.gate import Gate
from trainer.gateway.recording.recorder import GatewayRecorder
from trainer.output.log import Problem
from trainer.serving.training import TrainingDesk

MESSAGES = [{"role": "user", "content": "6 x 7?"}]


class StandInTrainer:
    """Keeps orders, and works on each until it is let go on."""

    def __init__(self) -> None:
        self.orders: list[tuple[Sequence[OrderedGroup] | None, dict[str, Any]]] = []
        self.imitated: list[tuple[Sequence[OrderedBatch], dict[str, Any]]] = []
        self.logged: list[tuple[LoggedNumbers, dict[str, Any]]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.began = asyncio.Event()
        self.error: Exception | None = None
        self.stopped = False

    async def begin(self) -> None: ...

    async def order(self, groups: Sequence[OrderedGroup] | None, settings: dict[str, Any]) -> list[TrainedStep]:
        self.orders.append((groups, settings))
        self.began.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return [TrainedStep(f"policy@{len(self.orders)}", "adapter", {"trajectories": 2.0})]

    async def imitate(self, batches: Sequence[OrderedBatch], settings: dict[str, Any]) -> list[TrainedStep]:
        self.imitated.append((batches, settings))
        if self.error is not None:
            raise self.error
        return [TrainedStep("policy@1", "adapter", {}, {"runs without an answer": 1})]

    async def log(self, numbers: LoggedNumbers, settings: dict[str, Any]) -> None:
        self.logged.append((numbers, settings))

    async def finish(self) -> None:
        await asyncio.sleep(0)

    async def stop(self) -> None:
        self.stopped = True


@dataclass
class Desk:
    site: Site
    desk: TrainingDesk
    trainer: StandInTrainer

    @property
    def url(self) -> str:
        return str(self.site.http.base_url)

    def answers(self, *texts: str) -> None:
        for text in texts:
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "policy@0", "choices": [choice]}
            self.site.engine.scripted.append((200, "application/json", json.dumps(answer).encode()))


@pytest.fixture
async def desk(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    """Parametrised indirectly: whether requests wait while it trains; they do by default."""
    trainer = StandInTrainer()
    desks: list[TrainingDesk] = []

    def make(recorder: GatewayRecorder, gate: Gate) -> TrainingDesk:
        made = TrainingDesk(recorder, gate, print, blocks=getattr(request, "param", True))
        made.trainer = trainer
        desks.append(made)
        return made

    async with gateway_at(tmp_path / "server", desk=make) as site:
        yield Desk(site, desks[0], trainer)


def group(*rewards: float | None, name: str = "g") -> dict[str, Any]:
    return {"key": name, "trajectories": [{"id": f"{name}-{i}", "reward": r} for i, r in enumerate(rewards)]}


async def test_a_run_named_in_the_request_is_recorded_ended_and_ordered(desk: Desk) -> None:
    desk.answers("42", "41", "7")
    async with art.AsyncClient(base_url=f"{desk.url}/v1") as client:
        one = await client.chat.completions.create(model="lora:latest", messages=MESSAGES)
        further = {"art": {"trajectory_id": one.trajectory.id}}
        other = await client.chat.completions.create(model="lora:latest", messages=MESSAGES, extra_body=further)
        single = await client.chat.completions.create(model="lora:latest", messages=MESSAGES)
        assert one.trajectory.id == other.trajectory.id != single.trajectory.id
        assert [message["content"] for message in one.trajectory.messages()] == ["6 x 7?", "42"]
        assert "trajectory" not in one.model_dump()
        assert all("art" not in asked for asked in desk.site.engine.generations)
        other.trajectory.reward, single.trajectory.reward = 1.0, 0.5
        other.trajectory.metrics["turns"] = 2
        [step] = await client.submit_trajectories([[other.trajectory, single.trajectory]], learning_rate=1e-5)
    assert step == TrainedStep("policy@1", "adapter", {"trajectories": 2.0})
    [(groups, settings)] = desk.trainer.orders
    assert groups is not None
    assert ([one.ids for one in groups], settings) == (
        [(one.trajectory.id, single.trajectory.id)],
        {"learning_rate": 1e-5},
    )
    desk.site.gateway.recorder.close()
    with open_store(DataDir(desk.site.directory), create=True) as store:
        runs = {run.id: run for run in store.trajectories()}
    run = runs[one.trajectory.id]
    assert (run.incomplete, len(run.calls), run.group, run.metadata) == (
        "",
        2,
        groups[0].key,
        {"metrics": {"turns": 2.0}},
    )
    assert [reward.value for reward in run.rewards] == [1.0]


@pytest.mark.parametrize("desk", [True, False], indirect=True, ids=["block", "overlap"])
async def test_requests_wait_or_go_on_while_it_trains(desk: Desk, request: pytest.FixtureRequest) -> None:
    desk.trainer.go_on.clear()
    training = asyncio.create_task(ServerConnection(desk.url).train([group(0.0, 1.0)], {}))
    await desk.trainer.began.wait()
    asking = asyncio.create_task(desk.site.chat())
    if desk.desk._blocks:
        while not desk.site.gateway.gate.waiting:
            await asyncio.sleep(0.005)
        assert not desk.site.engine.generations
        desk.trainer.go_on.set()
    assert (await asking).status_code == 200
    assert training.done() or not desk.desk._blocks
    desk.trainer.go_on.set()
    assert [one.version for one in await training] == ["policy@1"]
    assert not desk.site.gateway.gate.paused


async def test_an_order_sent_again_is_the_same_order_and_says_what_it_does(
    desk: Desk, capfd: pytest.CaptureFixture[str]
) -> None:
    desk.trainer.go_on.clear()
    order = {"order": "x", "groups": [group(0.0, 1.0)]}
    for _ in range(2):
        answer = await desk.site.http.post("/arttrace/train", json=order)
        assert answer.json()["state"] == "running"
    await desk.trainer.began.wait()
    desk.desk._said("3 of 9 tokens")
    waiting = await desk.site.http.post("/arttrace/train/wait", json={"order": "x"})
    assert (waiting.json()["said"], waiting.json()["lines"]) == (["3 of 9 tokens"], 1)
    desk.trainer.go_on.set()
    done = await desk.site.http.post("/arttrace/train/wait", json={"order": "x", "lines": 1})
    while done.json()["state"] == "running":
        done = await desk.site.http.post("/arttrace/train/wait", json={"order": "x", "lines": 1})
    assert [step["version"] for step in done.json()["steps"]] == ["policy@1"]
    assert len(desk.trainer.orders) == 1
    gone = await desk.site.http.post("/arttrace/train/wait", json={"order": "y"})
    assert gone.status_code == 404
    assert "started again" in gone.json()["error"]["message"]


async def test_what_cannot_be_trained_is_refused_with_the_reason(desk: Desk) -> None:
    server = ServerConnection(desk.url)
    with pytest.raises(TrainingError, match="no group has two runs"):
        await server.train([group(1.0)], {})
    with pytest.raises(TrainingError, match="not JSON"):
        await server.train([group(float("nan"), 1.0)], {})
    with pytest.raises(TrainingError, match="submitted twice"):
        await server.train([group(0.0, 1.0), group(0.0, 1.0)], {})
    body = b'{"order": "o", "groups": [{"key": "g", "trajectories": [{"id": "a", "reward": 1e999}, {"id": "b"}]}]}'
    answer = await desk.site.http.post("/arttrace/train", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert not desk.trainer.orders
    desk.trainer.error = TrainingError("there is no loss 'x'", "Use grpo.")
    with pytest.raises(TrainingError, match="no loss 'x'") as refused:
        await server.train([group(0.0, 1.0)], {"loss": "x"})
    assert refused.value.hint == "Use grpo."
    assert not desk.site.gateway.gate.paused
    async with art.AsyncClient(base_url=f"{desk.url}/v1") as client:
        with pytest.raises(TrainingError, match="has no choice"):
            await client.submit_trajectories([[art.Trajectory(MESSAGES, reward=1.0, id="a")] * 2])
        desk.answers("42")
        answer = await client.chat.completions.create(model="lora:latest", messages=MESSAGES)
        nameless = [art.Trajectory([*MESSAGES, answer.choices[0]], reward=1.0) for _ in range(2)]
        with pytest.raises(TrainingError, match="has no id"):
            await client.submit_trajectories([nameless])
        answer.trajectory.reward = float("inf")
        with pytest.raises(TrainingError, match="not a finite number"):
            await client.submit_trajectories([[answer.trajectory, answer.trajectory]])


async def test_a_model_is_registered_with_the_server_that_serves_it(desk: Desk, tmp_path: Path) -> None:
    arttrace.init(dir=tmp_path / "client")
    try:
        async with art.ServerBackend(desk.url) as backend:
            with pytest.raises(ServingError, match="serves the policy policy, not agent-001"):
                await art.TrainableModel("agent-001", "base").register(backend)
            with pytest.raises(ServingError, match=r"serves base, not Qwen/Qwen3-0\.6B"):
                await art.TrainableModel("policy", "Qwen/Qwen3-0.6B").register(backend)
            model = art.TrainableModel("policy", "somewhere/base")
            with pytest.raises(ServingError, match="is not registered"):
                await model.train([])
            await model.register(backend)
            assert await asyncio.to_thread(model.get_step) == 0

            async def rollout(reward: float) -> art.Trajectory:
                async with model.openai_client() as client:
                    answer = await client.chat.completions.create(model=model.name, messages=MESSAGES)
                return art.Trajectory([*MESSAGES, answer.choices[0]], reward=reward)

            desk.answers("42", "41")
            groups = await art.gather_trajectory_groups([art.TrajectoryGroup(rollout(r) for r in (0.0, 1.0))])
            [step] = await model.train(groups, config=art.TrainConfig(learning_rate=1e-5))
            assert step.version == "policy@1"
            trained = groups[0].captured
            assert (await model.log(groups, report_to="wandb"))["val/reward"] == 0.5
    finally:
        arttrace.shutdown()
    assert desk.trainer.logged == [(LoggedNumbers(0, {"val/reward": 0.5, "val/runs": 2.0}), {"report_to": ["wandb"]})]
    [(ordered, settings)] = desk.trainer.orders
    assert ordered is not None
    assert (set(ordered[0].ids), settings) == ({run.id for run in trained}, {"learning_rate": 1e-5})
    assert {run.tags for run in groups[0].captured} == {("held-out",)}, "what is logged as val is from then on"
    desk.site.gateway.recorder.close()
    with open_store(DataDir(desk.site.directory), create=True) as store:
        there = {run.id: run for run in store.trajectories(ids=ordered[0].ids)}
    for run in trained:
        assert there[run.id].revision == run.revision
        assert [reward.value for reward in there[run.id].rewards] == [reward.value for reward in run.rewards]


async def test_runs_that_are_not_whole_are_counted_in_the_answer_and_said(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arttrace.init(dir=tmp_path / "client")

    async def rollout(client: art.AsyncClient, *, loses: bool) -> art.Trajectory:
        answer = await client.chat.completions.create(model="lora:latest", messages=MESSAGES)
        if loses:
            lose_a_call()
        return art.Trajectory([*MESSAGES, answer.choices[0]], reward=1.0)

    try:
        async with art.AsyncClient(base_url=f"{desk.url}/v1") as client:
            desk.answers(*"abcde")
            group, lost = await art.gather_trajectory_groups(
                art.TrajectoryGroup(rollout(client, loses=loses) for loses in of)
                for of in ([False, False, True], [True, True])
            )
            caplog.clear()
            [step] = await client.submit_trajectories([group])
            assert step.left_out == {f"incomplete: {WHY}": 1}
            [said] = [record.getMessage() for record in caplog.records if record.name == "arttrace.loop"]
            assert said == f"1 of 3 runs not trained on: 1 incomplete: {WHY}"
            with pytest.raises(TrainingError, match="no run is complete: 2 of 2 runs not trained on: 2 incomplete"):
                await client.submit_trajectories([lost])
    finally:
        arttrace.shutdown()
    [(ordered, _)] = desk.trainer.orders
    assert ordered is not None
    assert [set(one.ids) for one in ordered] == [{run.id for run in group.group.trajectories}]


async def test_a_decorated_run_that_was_not_gathered_is_handed_over(desk: Desk, tmp_path: Path) -> None:
    """Its calls are captured in this process, so the server knows nothing of them."""
    arttrace.init(dir=tmp_path / "client")

    @arttrace.trajectory
    async def agent(client: art.AsyncClient) -> art.Trajectory:
        answer = await client.chat.completions.create(model="lora:latest", messages=MESSAGES)
        with arttrace.agent(name="sub-agent"):
            await client.chat.completions.create(model="lora:latest", messages=MESSAGES)
        trajectory: art.Trajectory = answer.trajectory
        return trajectory

    try:
        async with art.AsyncClient(base_url=f"{desk.url}/v1") as client:
            desk.answers("42", "ok", "41", "ok", "7")
            runs = [await agent(client) for _ in range(2)]
            outside = (await client.chat.completions.create(model="lora:latest", messages=MESSAGES)).trajectory
            for reward, run in enumerate((*runs, outside)):
                run.reward = float(reward)
            await client.submit_trajectories([[*runs, outside]])
            going = art.Trajectory(
                [*MESSAGES, runs[0].choices()[0]], reward=0.0, id="x", recorded_in=DataDir(tmp_path / "client")
            )
            with pytest.raises(
                TrainingError, match=r"no run is complete: .*were not kept by the process that made them"
            ):
                await client.submit_trajectories([[going]])
    finally:
        arttrace.shutdown()
    desk.site.gateway.recorder.close()
    with open_store(DataDir(desk.site.directory), create=True) as store:
        there = {run.id: run for run in store.trajectories()}
    assert set(there) == {one.id for one in (*runs, outside)}
    assert {(run.incomplete, len(run.calls)) for run in there.values()} == {("", 2), ("", 1)}
    assert [[reward.value for reward in there[one.id].rewards] for one in (*runs, outside)] == [[0.0], [1.0], [2.0]]
    assert [agent.name for agent in there[runs[0].id].agents] == ["agent", "sub-agent"]


async def test_no_more_agents_run_at_once_than_a_server_bears() -> None:
    running = most = 0

    async def agent(client: art.AsyncClient, prompt: str) -> art.Trajectory:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return art.Trajectory([{"role": "user", "content": prompt}], id=prompt)

    client = art.ArtClient("http://127.0.0.1:9", agents={"search": agent})
    groups = await client._groups(8, [("search", f"{number}") for number in range(20)])
    assert [[run.id for run in group.ready_made] for group in groups] == [[f"{number}"] * 8 for number in range(20)]
    assert most == 32


async def test_an_agent_that_raises_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def agent(client: art.AsyncClient, prompt: str) -> art.Trajectory:
        if prompt == "b" or next(number) % 2:
            raise LookupError("no such mail")
        return art.Trajectory([{"role": "user", "content": prompt}], id=prompt)

    number = itertools.count()
    client = art.ArtClient("http://127.0.0.1:9", agents={"search": agent})
    groups = await client._groups(4, [("search", "a"), ("search", "b")])
    assert [(len(group), len(group.exceptions)) for group in groups] == [(2, 2), (0, 4)]
    assert caplog.messages == ["6 of 8 rollouts raised; the first: LookupError('no such mail')"]
    with pytest.raises(LookupError, match="no such mail"):
        await client._groups(4, [("search", "b")])


async def test_an_agent_is_asked_at_the_server_and_recorded_there(desk: Desk) -> None:
    desk.answers("m-1")
    client = art.ArtClient(desk.url)
    run = await asyncio.to_thread(client.run_agent, "search_emails", "Find unread emails.")
    assert [message["content"] for message in run.messages()] == ["search_emails", "Find unread emails.", "m-1"]
    assert desk.site.gateway.recorder.trajectories.knows(run.id)


def chunks(*deltas: dict[str, Any], finish_reason: str | None = "stop") -> bytes:
    """An answer as a stream."""
    frame = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "policy@0"}
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
    lines = [json.dumps({**frame, "choices": [choice]}).encode() for choice in choices]
    return b"".join(b"data: %s\n\n" % line for line in (*lines, b"[DONE]"))


async def test_a_stream_has_its_trajectory_once_it_was_read(desk: Desk) -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"q": 1}'}}
    streams = [
        chunks({"role": "assistant", "content": "4"}, {"content": "2"}),
        chunks({"role": "assistant", "content": "", "tool_calls": [call]}, {"tool_calls": [more]}),
        chunks({"role": "assistant", "content": "4"}, finish_reason=None),
        chunks({"role": "assistant", "content": "4"}, {"content": "1"}),
    ]
    desk.site.engine.scripted += [(200, "text/event-stream", body) for body in streams]
    async with art.AsyncClient(base_url=f"{desk.url}/v1") as client:
        first = await client.chat.completions.create(model="lora:latest", messages=MESSAGES, stream=True)
        assert first.trajectory.choices() == []
        assert [chunk.choices[0].delta.content async for chunk in first] == ["4", "2", None]
        assert [message["content"] for message in first.trajectory.messages()] == ["6 x 7?", "42"]
        second = await client.chat.completions.create(model="lora:latest", messages=MESSAGES, stream=True)
        async with second as chunks_of_second:
            async for _ in chunks_of_second:
                pass
        [asked] = second.trajectory.choices()[0].message.tool_calls
        assert (asked.id, asked.function.name, asked.function.arguments) == ("c1", "look", '{"q": 1}')
        cut = await client.chat.completions.create(model="lora:latest", messages=MESSAGES, stream=True)
        assert [chunk async for chunk in cut]
        with pytest.raises(TrainingError, match="has no choice") as refused:
            await client.submit_trajectories([[first.trajectory, cut.trajectory]])
        assert "of a stream: once it was read to its end" in str(refused.value.hint)
        for reward, one in enumerate((first, second)):
            one.trajectory.reward = float(reward)
        [step] = await client.submit_trajectories([[first.trajectory, second.trajectory]])
    assert (step.version, step.left_out) == ("policy@1", {})

    def synchronous() -> tuple[list[str | None], str]:
        with art.Client(base_url=f"{desk.url}/v1") as client:
            stream = client.chat.completions.create(model="lora:latest", messages=MESSAGES, stream=True)
            texts = [chunk.choices[0].delta.content for chunk in stream]
            return texts, stream.trajectory.messages()[-1]["content"]

    assert await asyncio.to_thread(synchronous) == (["4", "1", None], "41")


async def test_trajectories_to_imitate_are_uploaded_and_ordered(desk: Desk, tmp_path: Path) -> None:
    """What they say once, and the runs of those that say nothing by themselves as they were captured."""
    arttrace.init(dir=tmp_path / "client")
    said = [art.Trajectory([*MESSAGES, {"role": "assistant", "content": answer}]) for answer in ("42", "six by seven")]
    try:
        async with art.ServerBackend(desk.url) as backend:
            model = art.TrainableModel("policy", "somewhere/base")
            await model.register(backend)
            with art.Trajectory() as captured:
                pass
            [step] = await model.train_sft(
                [*said, captured], art.TrainSFTConfig(learning_rate=[1e-4, 0.0]), lora_rank=8
            )
            assert (step.version, step.left_out) == ("policy@1", {"runs without an answer": 1})
            await model.train_sft(said[:1] * 3, art.TrainSFTConfig(batch_size=3))
            with pytest.raises(ArttraceError, match="no list of messages with roles"):
                await model.train_sft([art.Trajectory([])])
    finally:
        arttrace.shutdown()
    [(batches, settings), (again, _)] = desk.trainer.imitated
    assert settings == {"method": "sft", "lora_rank": 8}
    (one, other), (last,) = (batch.ids for batch in batches)
    assert ([batch.learning_rate for batch in batches], last) == ([1e-4, 0.0], captured.id)
    assert again == (OrderedBatch((one,) * 3, 5e-5),)
    desk.site.gateway.recorder.close()
    with open_store(DataDir(desk.site.directory), create=True) as store:
        there = {run.id: run for run in store.trajectories(ids=[one, other, last])}
    answers = [there[id].nodes[-1].message.text for id in (one, other)]
    assert (answers, len(there)) == (["42", "six by seven"], 3)


async def test_what_was_uploaded_is_uploaded_again_after_an_order_that_failed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server's store may have been pruned since."""
    arttrace.init(dir=tmp_path / "client")
    uploads: list[int] = []
    upload = ServerConnection.upload

    async def counted(self: ServerConnection, lines: Sequence[bytes]) -> None:
        uploads.append(len(lines))
        await upload(self, lines)

    monkeypatch.setattr(ServerConnection, "upload", counted)
    said = [art.Trajectory([*MESSAGES, {"role": "assistant", "content": "42"}])]
    try:
        async with art.ServerBackend(desk.url) as backend:
            model = art.TrainableModel("policy", "somewhere/base")
            await model.register(backend)
            await model.train_sft(said)
            await model.train_sft(said)
            assert len(uploads) == 1
            desk.trainer.error = TrainingError("1 of 1 run not in the store")
            with pytest.raises(TrainingError, match="not in the store"):
                await model.train_sft(said)
            desk.trainer.error = None
            await model.train_sft(said)
    finally:
        arttrace.shutdown()
    assert len(uploads) == 2
    assert uploads[0] == uploads[1]


async def test_a_batch_of_what_is_no_id_is_refused(desk: Desk) -> None:
    order = {"order": "one", "batches": [{"ids": ["x" * 4000], "learning_rate": 1e-4}]}
    answer = await desk.site.http.post("/arttrace/train", json=order)
    assert answer.status_code == 400
    assert not desk.trainer.imitated


async def test_groups_and_batches_in_one_request_are_refused(desk: Desk) -> None:
    order = {"order": "one", "groups": [group(0.0, 1.0)], "batches": [{"ids": ["g-0"], "learning_rate": 1e-4}]}
    answer = await desk.site.http.post("/arttrace/train", json=order)
    assert answer.status_code == 400
    assert "the order has both groups and batches" in answer.json()["error"]["message"]
    assert not desk.trainer.imitated
    assert not desk.trainer.orders


async def test_runs_that_the_server_recorded_are_not_taken_twice(desk: Desk) -> None:
    span = {"type": "span", "trace_id": "0" * 31 + "1", "span_id": "0" * 15 + "1", "parent_span_id": None}
    span |= {"name": "chat", "start_ns": 1, "end_ns": 2, "attributes": {"arttrace.trajectory.id": "mine"}}
    desk.answers("42")
    await desk.site.chat(art={"trajectory_id": "mine"})
    other = {**span, "attributes": {"arttrace.trajectory.id": "other"}}
    body = b"\n".join(json.dumps(one).encode() for one in (span, other))
    answer = await desk.site.http.post(
        "/arttrace/records", content=body, headers={"content-type": "application/x-ndjson"}
    )
    assert answer.json() == {"taken": 1, "recorded_here": 1}
    listed = json.dumps({**span, "attributes": {"arttrace.trajectory.id": ["mine"]}}).encode()
    odd = await desk.site.http.post("/arttrace/records", content=listed)
    assert odd.status_code == 200, "an id that is no text is nobody's here"
    bad = await desk.site.http.post("/arttrace/records", content=b"{}", headers={"content-type": "application/json"})
    assert bad.status_code == 400


async def test_a_gateway_that_does_not_train_says_so(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, api_key="the-key") as site:
        with pytest.raises(ServingError, match="asks for a key"):
            await ServerConnection(str(site.http.base_url)).status()
        with pytest.raises(TrainingError, match="does not train"):
            await ServerConnection(str(site.http.base_url), "the-key").train([group(0.0, 1.0)], {})
    with pytest.raises(ServingError, match="does not answer"):
        await ServerConnection("http://127.0.0.1:9").status()


async def test_uploads_count_among_the_bytes_that_are_held(desk: Desk) -> None:
    desk.site.gateway.gate.max_held_bytes = 100
    body = b"{" + b" " * 200
    answer = await desk.site.http.post("/arttrace/records", content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded")
    assert desk.site.gateway.gate.held_bytes == 0


async def test_orders_are_bounded_and_those_that_wait_are_not_forgotten(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.serving.training.MAX_KEPT", 2)
    monkeypatch.setattr("trainer.serving.training.MAX_WAITING", 3)
    desk.trainer.go_on.clear()

    async def order(name: str) -> Any:
        return await desk.site.http.post("/arttrace/train", json={"order": name, "groups": [group(0.0, 1.0)]})

    for name in "abc":
        assert (await order(name)).status_code == 200
    refused = await order("d")
    assert (refused.status_code, refused.json()["error"]["message"]) == (503, "3 orders wait already")
    assert (await order("a")).json()["state"] == "running", "it is known, and no further one"
    desk.trainer.go_on.set()
    for name in "abc":
        while (await order(name)).json()["state"] == "running":
            await asyncio.sleep(0.005)
    assert len(desk.trainer.orders) == 3
    assert (await order("d")).status_code == 200
    forgotten = await desk.site.http.post("/arttrace/train/wait", json={"order": "a"})
    assert forgotten.status_code == 404


async def test_no_order_is_begun_while_the_server_is_stopped(desk: Desk) -> None:
    await desk.desk.finish()
    with pytest.raises(TrainingError, match="is being stopped"):
        await ServerConnection(desk.url).train([group(0.0, 1.0)], {})
    assert not desk.trainer.orders


async def test_runs_of_before_a_restart_are_ended_and_ordered(tmp_path: Path) -> None:
    trainer = StandInTrainer()

    def make(recorder: GatewayRecorder, gate: Gate) -> TrainingDesk:
        made = TrainingDesk(recorder, gate, print, blocks=True)
        made.trainer = trainer
        return made

    built: list[art.Trajectory] = []
    for start in range(2):
        async with gateway_at(tmp_path / "server", desk=make) as site:
            desk = Desk(site, TrainingDesk(site.gateway.recorder, Gate(), print, blocks=True), trainer)
            desk.answers("42")
            async with art.AsyncClient(base_url=f"{desk.url}/v1") as client:
                answer = await client.chat.completions.create(model="lora:latest", messages=MESSAGES)
                answer.trajectory.reward = float(start)
                built.append(answer.trajectory)
                if start:
                    [step] = await client.submit_trajectories([built])
                    assert step.left_out == {}
            site.gateway.recorder.close()
    with open_store(DataDir(tmp_path / "server"), create=True) as store:
        runs = {run.id: run for run in store.trajectories()}
    assert [runs[one.id].incomplete for one in built] == ["", ""]
    assert [reward.value for one in built for reward in runs[one.id].rewards] == [0.0, 1.0]


TRAINER = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    (folder / "began").touch()
    while not (folder / "go-on").exists():
        time.sleep(0.01)
    step = {"version": "policy@1", "adapter": "adapter", "metrics": {}}
    print(json.dumps({"id": json.loads(line)["id"], "steps": [step]}), flush=True)
(folder / "ended").touch()
"""


async def test_stopping_waits_for_the_step_under_way_and_its_client_hears_of_it(desk: Desk, tmp_path: Path) -> None:
    """With a trainer that is a process, as it is served; of its protocol only."""
    (tmp_path / "trainer.py").write_text(TRAINER)
    desk.desk.trainer = TrainerProcess((sys.executable, str(tmp_path / "trainer.py"), str(tmp_path)))
    server = ServerConnection(desk.url)
    under_way = asyncio.create_task(server.train([group(0.0, 1.0)], {}))
    while not (tmp_path / "began").exists():
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(server.train([group(0.0, 1.0, name="h")], {}))
    while len(desk.desk._orders) < 2:
        await asyncio.sleep(0.01)
    finishing = asyncio.create_task(desk.desk.finish())
    with pytest.raises(TrainingError, match="the server was stopped"):
        await waiting
    assert not finishing.done()
    (tmp_path / "go-on").touch()
    assert [one.version for one in await under_way] == ["policy@1"]
    await finishing
    assert (tmp_path / "ended").exists()
    await desk.desk.close()


async def test_what_ends_an_order_unforeseen_is_said_on_the_server(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(desk.desk, "_say", said.append)
    desk.trainer.error = OSError("no process can be started")
    with pytest.raises(TrainingError, match="OSError: no process can be started"):
        await ServerConnection(desk.url).train([group(0.0, 1.0)], {})
    assert said == ["an order failed: OSError: no process can be started"]
    assert isinstance(said[0], Problem), "its level is WARNING"


async def test_a_server_that_answered_is_asked_again_when_its_tunnel_breaks() -> None:
    status = b'{"policy": "policy", "current": "policy@0", "step": 0, "base_model": "base"}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(status) + status)
        await writer.drain()
        writer.close()

    with reserved_port() as port:
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            server = ServerConnection(f"http://127.0.0.1:{port}")
            await server.status()
        asked = asyncio.create_task(server.status())
        done, _ = await asyncio.wait((asked,), timeout=0.5)
        assert not done
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            assert (await asked).policy == "policy"
