"""Trajectory: a rollout's own account of itself, built by hand or entered as a block, as programs written for ART do.

The sampled tokens do not come from it: the rollout's calls are captured as everywhere else, token ids included. It adds
what only the program knows: reward, metrics and metadata.
"""

from __future__ import annotations

import hashlib
import math
import reprlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from arttrace.capture.api import flush
from arttrace.formats.datasets.chat import openai_form
from arttrace.loop.blocks import RunBlock
from arttrace.loop.processes.art_arguments import OF_A_TRAJECTORY, made_without
from arttrace.records.call import Call
from arttrace.records.message import REASONING
from arttrace.records.reward import Reward, reward_clock
from arttrace.records.trajectory import Agent, AgentCall, MessageNode
from arttrace.records.trajectory import Trajectory as RecordedTrajectory
from arttrace.records.values.lenient_json import well_formed
from arttrace.store import open_store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.trajectories.conversations import main_conversation
from arttrace.trajectories.messages.tool_results import with_call_ids
from arttrace.wire.messages import parse_message

Messages = list[dict[str, Any]]
"""Messages in OpenAI's form."""
MessagesAndChoices = list[Any]
"""Messages, and the choices that the model's client returned."""
Tools = list[dict[str, Any]]
"""Tools in OpenAI's form."""


@dataclass
class History:
    """A conversation beside the main one of a trajectory: a sub-agent's, or the one before a compaction.

    Args:
        messages_and_choices: Messages (dicts) and the choices that the model's client returned, in order.
        tools: The tools that the model was offered, in OpenAI's form.
    """

    messages_and_choices: MessagesAndChoices = field(default_factory=list)
    tools: Tools | None = None

    def messages(self) -> Messages:
        """The messages in OpenAI's form, each choice as its message."""
        return [_message(one) for one in self.messages_and_choices]


@made_without(OF_A_TRAJECTORY)
@dataclass
class Trajectory(History):
    """One run of an agent. Return it from a rollout: `gather_trajectory_groups` gives the captured run its reward.

    Args:
        messages_and_choices: Messages (dicts) and the choices that the model's client returned, in order.
        tools: The tools that the model was offered, in OpenAI's form.
        reward: A finite number; None until it is set.
        metrics: Further numbers by name, shown beside the reward.
        metadata: Free JSON values by name.
        additional_histories: Further conversations of the same run.
        logs: Lines of text, by `log`.

    `id` is the captured run's, once gathered or entered. `recorded_in`: the data directory into which its calls were
    captured, if this process made them; `captured` says whether it did. `stored_reward` is the reward that is stored.

    Entered by `with`, it captures what the block calls, and needs no messages: a run of its own, or, in a rollout that
    is gathered and in a decorated function, their run. A block within another one is a run of its own. `agent_name` is
    that of a run of its own, and `result` what it shall have as its result where it has no messages.

    Example:
        ```python
        async def rollout(model: art.Model, question: str) -> art.Trajectory:
            trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}])
            answer = await model.openai_client().chat.completions.create(
                model=model.inference_name, messages=trajectory.messages()
            )
            trajectory.messages_and_choices.append(answer.choices[0])
            trajectory.reward = 1.0 if "42" in answer.choices[0].message.content else 0.0
            return trajectory
        ```
    """

    reward: float | None = None
    metrics: dict[str, float | int | bool] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    additional_histories: list[History] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    id: str = ""
    recorded_in: DataDir | None = field(default=None, repr=False, compare=False)
    stored_reward: float | None = field(default=None, init=False, repr=False, compare=False)
    _began: float = field(default_factory=time.monotonic, init=False, repr=False, compare=False)
    agent_name: str = field(default="rollout", init=False, repr=False, compare=False)
    result: Any = field(default=None, init=False, repr=False, compare=False)
    _block: RunBlock | None = field(default=None, init=False, repr=False, compare=False)

    def __enter__(self) -> Trajectory:
        if self._block is not None:
            raise ArttraceError("this trajectory was entered before: a run happens once", "Make a new Trajectory.")
        self._block = RunBlock(self, self.agent_name)
        self.id, self.recorded_in = self._block.id, self._block.recorded_in
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()
        if self._block is not None:
            self._block.leave(self.__arttrace_account__(), kind, error, traceback)

    def messages(self) -> Messages:
        """The messages in OpenAI's form, each choice as its message; of a captured run that was given none, the ones
        that its calls say so far. Tool calls that were recorded without ids, as Gemini's, have some.

        Raises:
            StoreError: The store cannot be opened or asked.
        """
        said = super().messages()
        if said or self.recorded_in is None:
            return said
        flush()
        with open_store(self.recorded_in, create=True) as store:
            found = list(store.trajectories(ids=[self.id]))
        conversation = main_conversation(found[0]) if found else None
        return [] if conversation is None else list(map(openai_form, with_call_ids(conversation.messages)))

    @property
    def captured(self) -> bool:
        """Whether its calls were captured in this process."""
        return self.recorded_in is not None

    def finish(self) -> Trajectory:
        """This trajectory, with the seconds since it was made as the metric `duration`."""
        self.metrics["duration"] = time.monotonic() - self._began
        return self

    @asynccontextmanager
    async def track_duration(self, metric_name: str) -> AsyncIterator[None]:
        """Add the seconds that a block takes to the metric `NAME_duration`.

        Args:
            metric_name: The name.
        """
        began, name = time.monotonic(), f"{metric_name}_duration"
        try:
            yield
        finally:
            self.metrics[name] = self.metrics.get(name, 0.0) + time.monotonic() - began

    def log(self, message: str) -> None:
        """Keep a line of text, with the time.

        Args:
            message: The text.
        """
        self.logs.append(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}")

    def choices(self) -> list[Any]:
        """The choices of all histories, in order."""
        histories = (self, *self.additional_histories)
        return [one for each in histories for one in each.messages_and_choices if not isinstance(one, Mapping)]

    def __arttrace_account__(self) -> tuple[Any, dict[str, Any]]:
        """The result and the metadata of the run that returns this trajectory: what its last message says or `result`,
        and the metadata with the metrics, where these are finite numbers."""
        said = super().messages()
        metadata = dict(self.metadata)
        with suppress(ArttraceError):  # whoever gathers the run raises it
            if self.finite_metrics():
                metadata["metrics"] = self.metrics
        return said[-1].get("content") if said else self.result, metadata

    def record(self) -> Reward | None:
        """The reward as it is to be stored, which replaces the one that is stored, or takes it back where it is None by
        now. None where nothing is to be stored.

        Raises:
            ArttraceError: The reward is not a finite number.
        """
        value = self.finite_reward()
        if value == self.stored_reward or not self.id:
            return None
        shown = self.stored_reward if value is None else value
        return Reward(
            f"{self.id}:trajectory", self.id, shown or 0.0, time_ns=reward_clock.now_ns(), counts=value is not None
        )

    def finite_reward(self) -> float | None:
        """The reward, where there is one.

        Raises:
            ArttraceError: It is not a finite number.
        """
        if self.reward is None:
            return None
        remedy = "Give it a number, or leave it None and let a judge score the group."
        return finite(self.reward, f"the reward of {self._called}", remedy)

    def finite_numbers(self) -> dict[str, float]:
        """The reward, where there is one, as `reward`, and the metrics by name.

        Raises:
            ArttraceError: One of them is not a finite number.
        """
        reward = self.finite_reward()
        return {**({} if reward is None else {"reward": reward}), **self.finite_metrics()}

    def finite_metrics(self) -> dict[str, float]:
        """The metrics by name.

        Raises:
            ArttraceError: One of them is not a finite number.
        """
        remedy = "Give it a number, or leave it out; what is no number belongs in metadata."
        return {
            str(name): finite(number, f"the metric {name!r} of {self._called}", remedy)
            for name, number in self.metrics.items()
        }

    @property
    def _called(self) -> str:
        return f"trajectory {self.id}" if self.id else "a run"


def conversation_record(one: Trajectory) -> RecordedTrajectory:
    """The trajectory as the record that judges read: each history belongs to an agent, and none of its tokens are known
    to have been sampled.

    Args:
        one: A trajectory whose calls were not captured here.

    Returns:
        The record.
    """
    id = record_id(one)
    agents: list[Agent] = []
    nodes: list[MessageNode] = []
    calls: list[AgentCall] = []
    for number, history in enumerate((one, *one.additional_histories)):
        agent = Agent(f"{id}-{number}", f"history {number}" if number else "agent", agents[0].id if agents else None)
        agents.append(agent)
        last: str | None = None
        for said in history.messages():
            node = MessageNode(f"{agent.id}-{len(nodes)}", agent.id, last, parse_message(well_formed(said)))
            nodes.append(node)
            last = node.id
        offered = tuple(well_formed(dict(tool)) for tool in history.tools or ())
        calls.append(AgentCall(Call(f"{agent.id}-call", id, None, 0, 0, tools=offered), agent.id, last))
    messages = [node.message for node in nodes if node.agent_id == agents[0].id]
    return RecordedTrajectory(
        id=id,
        revision=hashlib.blake2b(repr(messages).encode(), digest_size=16).hexdigest(),
        agents=tuple(agents),
        calls=tuple(calls),
        nodes=tuple(nodes),
    )


def record_id(one: Trajectory) -> str:
    """A trajectory's name among others: its id, or a name of this object if it has none.

    Args:
        one: The trajectory.
    """
    return one.id or f"unnamed-{id(one):x}"


def finite(number: Any, what: str, remedy: str) -> float:
    """The number as a float. Text that reads like one is none: whoever meant a number would not see it change.

    Args:
        number: The number.
        what: What it is of, for the error.
        remedy: What to do about it.

    Raises:
        ArttraceError: It is not a finite number.
    """
    try:
        value = math.nan if isinstance(number, str | bytes | bytearray) else float(number)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise ArttraceError(f"{what} is {reprlib.repr(number)}, not a finite number", remedy)
    return value


def _message(one: Any) -> dict[str, Any]:
    if isinstance(one, Mapping):
        return dict(one)
    message = getattr(one, "message", one)
    said: dict[str, Any] = {}
    if hasattr(message, "model_dump"):
        said = message.model_dump(exclude_none=True, include=_FIELDS, exclude=_PARSED)
    if not said:
        raise ArttraceError(
            f"a {type(one).__name__} is neither a message nor a choice",
            "Append dicts, or `completion.choices[0]` as the client returned it.",
        )
    return said


_FIELDS = {"role", "content", "tool_calls", "function_call", "name", "refusal", *REASONING}
"""The fields of a choice's message that a server accepts in a request."""
_PARSED = {"tool_calls": {"__all__": {"function": {"parsed_arguments"}}}}
"""The fields that the client's `parse` added to it."""
