"""Trajectory groups of OpenPipe's ART, as its `TrajectoryGroup` is written as JSON. Pure.

An answer of the run is a choice, which ART trains on; every other message is context, and so is an answer that failed
or was broken off, for which a choice has no word. Token ids stand where ART looks for them: in the `token` of a
log-probability, as `token_id:N`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from arttrace.formats.datasets.chat import openai_form
from arttrace.formats.datasets.forms import Row, Unsuitable
from arttrace.records.call import Choice
from arttrace.records.message import Message
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import AgentCall, MessageNode, Trajectory
from arttrace.records.values.finish_reasons import BROKEN, CUT_SHORT
from arttrace.trajectories.conversations import Branch, branches, without_end
from arttrace.trajectories.messages.tool_results import with_call_ids
from arttrace.wire.messages import openai_message

_SAID = "messages_and_choices"
_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")
_SCALARS = (str, int, float, bool, type(None))


BROKEN_OFF = "answers that failed or were broken off, written as messages that ART does not train on"
NO_TOKENS = "answers written without their token ids, which ART holds beside a log-probability for each"


def trajectory(run: Trajectory, reward: float | None, lost: Counter[str]) -> Row:
    """One run: the root agent's last conversation first, every other one as an additional history. `lost` counts what
    is written without a part of it."""
    if reward is None:
        raise Unsuitable(NotTrained.NO_REWARD)
    ends = without_end(run)
    all_branches = branches(run, ends)
    if not all_branches:
        raise Unsuitable(NotTrained.NO_ANSWER)
    root = run.agents[0].id if run.agents else all_branches[0].agent_id
    main = next((branch for branch in reversed(all_branches) if branch.agent_id == root), all_branches[0])
    calls = {placed.call.span_id: placed for placed in run.calls}
    row: Row = {
        **_history(main, calls, ends, lost),
        "additional_histories": [_history(branch, calls, ends, lost) for branch in all_branches if branch is not main],
        "reward": reward,
        "metrics": _metrics(run),
        "metadata": _metadata(run),
        "logs": [run.error] if run.error else [],
    }
    if not any("finish_reason" in said for one in (row, *row["additional_histories"]) for said in one[_SAID]):
        raise Unsuitable(NotTrained.CUT_OFF)
    versions = [
        int(number)
        for version in run.policy_versions
        if (number := version.rpartition("@")[2]).isascii() and number.isdigit()
    ]
    if versions:
        row["initial_policy_version"], row["final_policy_version"] = min(versions), max(versions)
    return row


def group(key: str, trajectories: Sequence[Row]) -> Row:
    """A group of runs that `trajectory` made."""
    return {"trajectories": list(trajectories), "exceptions": [], "metadata": {"group": key}, "metrics": {}, "logs": []}


def _history(branch: Branch, calls: dict[str, AgentCall], ends: tuple[set[str], set[str]], lost: Counter[str]) -> Row:
    if branch.fault is not None:
        raise Unsuitable(branch.fault)
    cut, unended = ends
    said: list[Row] = []
    messages = with_call_ids([node.message for node in branch.nodes])
    for node, message, is_target in zip(branch.nodes, messages, branch.is_target, strict=True):
        if not is_target:
            said.append(openai_form(message))
            continue
        choice = _sampled(node, calls)
        reason = choice.end if choice is not None else None
        if node.id in cut or reason in BROKEN or (node.id in unended and reason not in CUT_SHORT):
            said.append(openai_form(message))
            lost[BROKEN_OFF] += 1
            continue
        said.append(choice_row := _choice(message, choice, reason))
        if choice is not None and choice.token_ids is not None and choice_row["logprobs"] is None:
            lost[NO_TOKENS] += 1
    return {_SAID: said, "tools": list(branch.tools) or None}


def _sampled(node: MessageNode, calls: dict[str, AgentCall]) -> Choice | None:
    """The choice that an answer came as; of several the first that did not fail."""
    found = [
        choice
        for span_id, index in node.sampled_by
        if span_id in calls
        for choice in calls[span_id].call.choices
        if choice.index == index
    ]
    return next((one for one in found if one.end not in BROKEN), found[0] if found else None)


def _choice(message: Message, choice: Choice | None, reason: str | None) -> Row:
    message_row = {"content": None, **openai_message(message), "role": "assistant"}
    if isinstance(message_row["content"], list):
        raise Unsuitable(NotTrained.NOT_TEXT)
    if reason not in _REASONS:
        reason = "length" if reason in CUT_SHORT else "tool_calls" if message.tool_calls else "stop"
    return {"finish_reason": reason, "index": 0, "logprobs": _logprobs(choice), "message": message_row}


def _logprobs(choice: Choice | None) -> Row | None:
    if choice is None or choice.token_ids is None or choice.logprobs is None:
        return None
    if len(choice.token_ids) != len(choice.logprobs) or None in choice.logprobs:
        return None
    content: list[Row] = [
        {"token": f"token_id:{id}", "bytes": None, "logprob": logprob, "top_logprobs": []}
        for id, logprob in zip(choice.token_ids, choice.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _metrics(run: Trajectory) -> dict[str, float]:
    """The rewards by name; one that was given to an agent under the agent's name too."""
    names = {agent.id: agent.name for agent in run.agents}
    found: dict[str, float] = {}
    for reward in run.rewards:
        name = reward.name if reward.agent_id is None else f"{names.get(reward.agent_id, 'agent')}/{reward.name}"
        found[name] = found.get(name, 0.0) + reward.value
    return found


def _metadata(run: Trajectory) -> dict[str, Any]:
    """Numbers and texts are all that ART's metadata holds: what has structure is JSON text."""
    known = {
        name: value if isinstance(value, _SCALARS) else msgspec.json.encode(value).decode()
        for name, value in run.metadata.items()
    }
    own = {"trajectory_id": run.id, "scenario": run.scenario, "project": run.project, "tags": ",".join(run.tags)}
    return {**{name: value for name, value in own.items() if value}, **known}
