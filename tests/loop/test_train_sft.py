"""Trajectories to imitate, as ART's programs pass them: what is ordered, what is kept of them, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

import arttrace
import arttrace.loop as art
from arttrace.loop.imitation.examples import take_examples
from arttrace.records.trajectory import Trajectory as Recorded
from arttrace.store import Store
from arttrace.system.errors import ArttraceError, ServingError, TrainingError
from arttrace.trajectories.conversations import conversations

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"location": "Hobart"}'}}


def asked(question: str, *answers: str) -> art.Trajectory:
    messages: list[Any] = [{"role": "user", "content": question}]
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Sure?"}]
    return art.Trajectory(messages_and_choices=messages[:-1] if answers else messages)


def weather() -> art.Trajectory:
    """A tool call as a dict, and an answer as the choice that a client returned, which the limit cut."""
    cut = Choice(
        finish_reason="length", index=0, message=ChatCompletionMessage(role="assistant", content="It is 15 degrees in")
    )
    return art.Trajectory(
        messages_and_choices=[
            {"role": "user", "content": "What's the weather in Hobart?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "15°C"},
            cut,
        ],
        tools=TOOLS,
        reward=0.3,
    )


def ordered(backend: art.LocalBackend) -> list[Any]:
    return [json.loads(line) for line in (backend.data.root / "batches").read_text().splitlines()]


def kept(backend: art.LocalBackend, ids: Sequence[str]) -> dict[str, Recorded]:
    with Store.open(backend.data) as store:
        return {run.id: run for run in store.trajectories(ids=list(ids))}


def imitated(run: Recorded) -> list[str]:
    """What is to be learned of a run, in the order of its conversations."""
    return [str(one.chat()[at]["content"]) for one in conversations(run) for at in one.targets]


async def test_batches_in_the_order_of_the_trajectories(backend: art.LocalBackend, model: art.TrainableModel) -> None:
    """Twice two, by default, and one that is left; what is there again is the same run, and rewards say nothing."""
    given = [asked("a", "A", "B"), weather(), asked("c", "C"), asked("a", "A", "B"), asked("c", "C")]
    async with backend:
        await model.register(backend)
        [step] = await model.train_sft(given, art.TrainSFTConfig(learning_rate=[2e-4, 1e-4, 0.0]))
        assert (step.version, step.left_out) == ("policy@1", {"odd": 1})
        await model.train_sft(iter(given[2:]), config=art.TrainSFTConfig(batch_size=3), verbose=True, lora_rank=8)
    [[batches, settings], [again, further]] = ordered(backend)
    assert [one["learning_rate"] for one in batches] == [2e-4, 1e-4, 0.0]
    (a, b), (c, a_again), (c_again,) = (one["ids"] for one in batches)
    assert (a, c) == (a_again, c_again)
    assert settings == {"method": "sft"}
    assert (again, further) == ([{"ids": [c, a, c], "learning_rate": 5e-5}], {"method": "sft", "lora_rank": 8})
    runs = kept(backend, (a, b, c))
    assert [imitated(runs[id]) for id in (a, c)] == [["A", "B"], ["C"]]
    assert not any(run.incomplete or run.rewards for run in runs.values())
    called, cut = conversations(runs[b])[0].chat()[1::2]
    assert (called["tool_calls"][0]["function"]["name"], cut["content"]) == ("get_weather", "It is 15 degrees in")
    [said] = conversations(runs[b])
    assert (said.targets, said.unended, said.tools[0]["function"]["name"]) == ((1, 3), (3,), "get_weather")


async def test_of_each_the_last_answer_alone(backend: art.LocalBackend, model: art.TrainableModel) -> None:
    """As context the others stand in the prompt; what is imitated otherwise is another run. OpenAI's weight counts."""
    marked = asked("a", "A", "B")
    marked.messages_and_choices[3]["weight"] = 0
    async with backend:
        await model.register(backend)
        last = art.TrainSFTConfig(assistant_turns="last")
        await model.train_sft([asked("a", "A", "B")], last)
        await model.train_sft([asked("a", "A", "B"), marked])
    [[[only], _], [[both], _]] = ordered(backend)
    ids = [*only["ids"], *both["ids"]]
    assert len(set(ids)) == 3
    runs = kept(backend, ids)
    assert [imitated(runs[id]) for id in ids] == [["B"], ["A", "B"], ["A"]]
    [conversation] = conversations(runs[ids[0]])
    assert [one["content"] for one in conversation.chat()] == ["a", "A", "Sure?", "B"]


async def test_a_captured_run_is_imitated_as_it_ran_or_by_what_its_trajectory_says(
    backend: art.LocalBackend, model: art.TrainableModel, tmp_path: Path
) -> None:
    """Its calls may have been captured into the directory of another backend of this process."""
    arttrace.init(dir=tmp_path / "elsewhere")
    with art.Trajectory() as silent:
        pass
    with art.Trajectory(messages_and_choices=asked("a", "A").messages_and_choices) as spoken:
        pass
    async with backend:
        await model.register(backend)
        await model.train_sft([silent, spoken])
        with pytest.raises(TrainingError, match='assistant_turns="last" chooses nothing of it'):
            await model.train_sft([silent], art.TrainSFTConfig(assistant_turns="last"))
    [[[batch], _]] = ordered(backend)
    assert batch["ids"][0] == silent.id
    assert batch["ids"][1] != spoken.id
    runs = kept(backend, batch["ids"])
    assert imitated(runs[batch["ids"][1]]) == ["A"]
    assert set(runs) == set(batch["ids"])


async def test_what_was_pruned_between_two_calls_is_kept_again(
    backend: art.LocalBackend, model: art.TrainableModel
) -> None:
    """A store that is held to a size loses these runs first: their time is long past. What is there stays as it is."""
    given = [asked("a", "A"), asked("b", "B")]
    async with backend:
        await model.register(backend)
        await model.train_sft(given[:1])
        with Store.open(backend.data) as store:
            assert store.prune(max_bytes=1).trajectories == 1
        await model.train_sft(given)
        with Store.open(backend.data) as store:
            size = store.sql("SELECT count(*) FROM span_records")[1]
        await model.train_sft(given)
        with Store.open(backend.data) as store:
            assert store.sql("SELECT count(*) FROM span_records")[1] == size
    _, [[batch], _], _ = ordered(backend)
    assert [imitated(run) for run in kept(backend, batch["ids"]).values()] in ([["A"], ["B"]], [["B"], ["A"]])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "there is no trajectory to imitate"),
        (5, "a int is no list of trajectories"),
        ({"a": asked("a", "A")}, "a dict is no list of trajectories"),
        ([art.TrajectoryGroup([])], "a TrajectoryGroup is no trajectory"),
        ([{"messages": []}], "a dict is no trajectory"),
        ([art.Trajectory(messages_and_choices=["a"])], "a str is neither a message nor a choice"),
        ([art.Trajectory()], "a trajectory cannot be kept: no list of messages with roles"),
        ([art.Trajectory(messages_and_choices=[{"content": "a"}])], "no list of messages with roles"),
        ([art.Trajectory(messages_and_choices=[{"role": "user", "content": object()}])], "a trajectory cannot be kept"),
        ([art.Trajectory(messages_and_choices=[{"role": "user"}], tools="none")], "tools of a trajectory are no list"),
        ([art.Trajectory(additional_histories=[art.History()])], "additional histories, which train_sft does not"),
    ],
)
async def test_what_is_no_trajectory_to_imitate_is_refused(given: Any, said: str) -> None:
    async def keep(_: object) -> None:
        raise AssertionError("nothing is kept")

    with pytest.raises(ArttraceError, match=said) as shown:
        await take_examples(given, art.TrainSFTConfig(), keep)
    assert shown.value.hint


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"learning_rate": -1e-5}, "learning_rate is -1e-05"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": "1e-5"}, "learning_rate is '1e-5'"),
        ({"learning_rate": [1e-5, None]}, r"learning_rate is \[1e-05, None\]"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": "all"}, "batch_size is 'all'"),
        ({"assistant_turns": "first"}, "assistant_turns is 'first'"),
    ],
)
def test_a_config_that_means_nothing_is_refused_where_it_is_made(config: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        art.TrainSFTConfig(**config)


@pytest.mark.parametrize("rates", [[1e-5], [1e-5] * 3])
async def test_learning_rates_are_one_for_each_step(
    backend: art.LocalBackend, model: art.TrainableModel, rates: list[float]
) -> None:
    async with backend:
        await model.register(backend)
        with pytest.raises(TrainingError, match=f"there are {len(rates)} learning rates? for 2 optimizer steps"):
            await model.train_sft([asked("a", "A")] * 4, art.TrainSFTConfig(rates))
        with pytest.raises(TrainingError, match="there is no _config here") as refused:
            await model.train_sft([asked("a", "A")], _config={"max_length": 9})
        assert "`arttrace train --method sft`: max_length=4096." in str(refused.value.hint)
        with pytest.raises(TrainingError, match="there is no packed_sequence_length here"):
            await backend.train_sft(model, [asked("a", "A")], packed_sequence_length=9)
    with pytest.raises(TrainingError, match="the backend was closed"):
        await model.train_sft([asked("a", "A")])
    with pytest.raises(ServingError, match="is not registered"):
        await art.TrainableModel("other", model.base_model).train_sft([asked("a", "A")])


def test_many_are_kept_some_at_a_time(backend: art.LocalBackend) -> None:
    """Those of an endless file do not fill the memory: they are asked for as the last ones are kept."""
    kept_so_far: list[int] = []
    asked_for = 0

    def endless() -> Any:
        nonlocal asked_for
        for number in range(1000):
            asked_for = number
            yield asked(f"question {number % 500}", "A")

    async def keep(runs: Mapping[str, Any]) -> None:
        kept_so_far.append(len(runs))
        assert asked_for < sum(kept_so_far) + 64

    found = asyncio.run(take_examples(endless(), art.TrainSFTConfig(batch_size=10), keep))
    assert sum(kept_so_far) == 500, "what is there again is not kept again"
    assert [len(one.ids) for one in found.batches] == [10] * 100
