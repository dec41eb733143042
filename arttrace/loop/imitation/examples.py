"""Trajectories to imitate as the trainer takes them: each is a run in the store, named by what it says, and each
optimizer step names the runs that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from arttrace.formats.content_ids import ContentIds
from arttrace.formats.conversations import Conversations
from arttrace.formats.sdks.anthropic_messages import whole_conversation
from arttrace.loop.processes.art_names import AssistantTurns, TrainSFTConfig
from arttrace.loop.processes.trainer_process import OrderedBatch
from arttrace.loop.trajectory import History, Trajectory
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import well_formed
from arttrace.system.errors import ArttraceError, TrainingError
from arttrace.system.paths import DataDir

SOURCE = "train_sft"
"""The project of runs that were only given to be imitated."""
_AT_ONCE = 64
Records = list[SpanRow]


@dataclass(slots=True)
class Examples:
    """What was made of trajectories: the batches, and where those runs were recorded that were captured."""

    batches: list[OrderedBatch]
    captured: dict[str, DataDir] = field(default_factory=dict)


async def take_examples(
    trajectories: Iterable[Trajectory],
    config: TrainSFTConfig,
    keep: Callable[[Mapping[str, Records]], Awaitable[None]],
) -> Examples:
    """Have trajectories kept as runs, some at a time, and share them out over optimizer steps in their order.

    Args:
        trajectories: What is to be imitated.
        config: How many make a step, its learning rate, and which messages are imitated.
        keep: Stores the records of runs, by their ids, wherever the trainer reads, of those that are not there.

    Returns:
        The batches, and the directories of captured runs.

    Raises:
        ArttraceError: Something else than trajectories was passed, or a message or a tool is none.
        TrainingError: There is none, a trajectory has what is not imitated, or the learning rates are not one for each
            step.
    """
    ids: list[str] = []
    captured: dict[str, DataDir] = {}
    known: set[str] = set()
    given = iter(_checked(trajectories))
    while part := list(islice(given, _AT_ONCE)):
        made = await asyncio.to_thread(_examples, part, config.assistant_turns)
        for one, (id, _) in zip(part, made, strict=True):
            ids.append(id)
            if id == one.id and one.recorded_in is not None:
                captured[id] = one.recorded_in
        new = {id: records for id, records in made if records and id not in known}
        if new:
            await keep(new)
            known.update(new)
    if not ids:
        raise TrainingError("there is no trajectory to imitate", "Pass a list of them: train_sft([trajectory]).")
    size = config.trajectories_per_step
    shares = [tuple(ids[first : first + size]) for first in range(0, len(ids), size)]
    rates = config.learning_rates(len(shares))
    return Examples([OrderedBatch(*one) for one in zip(shares, rates, strict=True)], captured)


def _checked(trajectories: Any) -> Iterable[Trajectory]:
    remedy = "Pass trajectories: train_sft([one for group in groups for one in group.trajectories])."
    if not isinstance(trajectories, Iterable) or isinstance(trajectories, Mapping):
        raise ArttraceError(f"a {type(trajectories).__name__} is no list of trajectories", remedy)
    for one in trajectories:
        if not isinstance(one, Trajectory):
            raise ArttraceError(f"a {type(one).__name__} is no trajectory", remedy)
        yield one


def _examples(part: Iterable[Trajectory], turns: AssistantTurns) -> list[tuple[str, Records]]:
    return [_example(one, turns) for one in part]


def _example(one: Trajectory, turns: AssistantTurns) -> tuple[str, Records]:
    """The run's id, and its records; none of one that was captured and says nothing by itself."""
    if one.additional_histories:
        raise TrainingError(
            "a trajectory has additional histories, which train_sft does not imitate",
            "Pass each as a trajectory of its own: "
            "Trajectory(messages_and_choices=history.messages_and_choices, tools=history.tools).",
        )
    if not one.messages_and_choices and one.recorded_in is not None:
        if turns == "last":
            raise TrainingError(
                'a trajectory without messages is imitated as its run was captured: assistant_turns="last" chooses '
                "nothing of it",
                "Pass Trajectory(messages_and_choices=trajectory.messages()), with its tools.",
            )
        return one.id, []
    if one.tools is not None and not (
        isinstance(one.tools, list) and all(isinstance(tool, dict) for tool in one.tools)
    ):
        raise ArttraceError("the tools of a trajectory are no list of dicts", "Pass them in OpenAI's form.")
    item = {"messages": _messages(one, turns), **({"tools": one.tools} if one.tools else {})}
    try:
        # What no span can hold stands behind the last answer, or is a part that the trainer counts.
        spans = [one for one in Conversations(SOURCE, ContentIds()).records(item) if isinstance(one, SpanRow)]
    except (TypeError, ValueError, RecursionError) as error:
        raise ArttraceError(
            f"a trajectory cannot be kept: {error}", "Its messages and tools are JSON values in OpenAI's form."
        ) from error
    return spans[-1].trace_id, spans


def _messages(one: Trajectory, turns: AssistantTurns) -> list[dict[str, Any]]:
    """What it says, in OpenAI's form. Messages that are not to be imitated have the weight 0, as in OpenAI's
    fine-tuning; a choice says why it ended."""
    said = []
    for given, message in zip(one.messages_and_choices, History.messages(one), strict=True):
        reason = None if isinstance(given, Mapping) else getattr(given, "finish_reason", None)
        said.append({**message, "finish_reason": reason} if isinstance(reason, str) else message)
    messages = whole_conversation(well_formed(said))
    if turns == "last":
        last = max((at for at, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
        messages = [
            {**message, "weight": 0} if message.get("role") == "assistant" and at != last else message
            for at, message in enumerate(messages)
        ]
    return messages
