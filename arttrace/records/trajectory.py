"""Trajectory: everything one decorated run did, as agent tree, message graph, tool calls and rewards."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from arttrace.records.call import Call
from arttrace.records.message import Message
from arttrace.records.reward import Reward


class Agent(msgspec.Struct, frozen=True):
    """A node of the agent tree.

    `id` is the span id of its `invoke_agent` span, or an id derived from its first call when the agent was inferred
    (undecorated sub-agents are distinguished by their flow of control and history; `evidence` says how).
    `spawned_by` is the tool call id in the parent whose result this agent's answer became, when known; `confidence`
    (0 to 1) is how sure that is: 1.0 word for word, less where the answer was found inside the result.
    """

    id: str
    name: str
    parent_id: str | None = None
    start_ns: int = 0
    end_ns: int = 0
    inferred: bool = False
    placeholder: bool = False
    evidence: str = ""
    spawned_by: str | None = None
    confidence: float = 1.0


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """One tool execution: recorded by the span `span_id`, or inferred from the history (its times are then only bounds,
    and `span_id` is "")."""

    id: str
    agent_id: str
    name: str
    arguments: str = ""
    result: str | None = None
    error: str | None = None
    start_ns: int = 0
    end_ns: int = 0
    inferred: bool = False
    span_id: str = ""


class HttpRequest(msgspec.Struct, frozen=True, gc=False):
    """One HTTP request, mostly a tool's. `tool_call_id` is that of the tool call that made it, or None.

    `url` has no user, password or fragment, and no values in its query; it is "" if content is not recorded. Sizes are
    those of the bodies in bytes, None if unknown. `error` is an exception's type, or the status.
    """

    span_id: str
    agent_id: str
    method: str
    host: str
    url: str = ""
    tool_call_id: str | None = None
    status: int | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None
    error: str | None = None
    interrupted: str = ""
    start_ns: int = 0
    end_ns: int = 0


class MessageNode(msgspec.Struct, frozen=True, gc=False):
    """One distinct message in the graph of one agent, linked to its predecessor.

    `id` is a hash over (agent, tools, parent, message), so that equal histories share nodes. `sampled_by` are the
    (span id, choice index) of the calls that produced it; empty for context.
    """

    id: str
    agent_id: str
    parent_id: str | None
    message: Message
    sampled_by: tuple[tuple[str, int], ...] = ()


class Relation(StrEnum):
    """How a call's history relates to the earlier ones of its agent."""

    START = "start"
    EXTENDS = "extends"
    REGENERATION = "regeneration"
    RETRY = "retry"
    EDIT = "edit"
    COMPACTION = "compaction"
    SUB_AGENT = "sub-agent"
    TOOLS_CHANGED = "tools-changed"
    TEMPLATE_DROPPED_REASONING = "template-dropped-reasoning"
    UNRELATED = "unrelated"


class AgentCall(msgspec.Struct, frozen=True, gc=False):
    """A call placed in the tree and the graph: `prompt_node` is the last message of its prompt.

    `relation` is that to the call `related_to` (a span id, None for a start), with the evidence for it and its
    confidence (0 to 1: 1.0 is a fact, lower values are inferred from the messages).
    """

    call: Call
    agent_id: str
    prompt_node: str | None
    choice_nodes: tuple[str, ...] = ()
    relation: Relation = Relation.START
    related_to: str | None = None
    evidence: str = ""
    confidence: float = 1.0


class Trajectory(msgspec.Struct, frozen=True):
    """Everything one decorated run did.

    `revision` is a hash of the spans it was built from: the same spans in any order give the same revision.
    `entry` loads the entry point again; `entry_name` is its name within its project, "" where it was not recorded.
    `group` is what the program set; `regrouped` is the key of a later grouping, which then counts. `incomplete` is the
    reason why the trajectory is not complete, or empty. `conflicts` counts spans set aside because another one with the
    same id and other content won. `http_lost` counts HTTP requests that were begun and did not arrive; they make no
    trajectory incomplete. `notes` are people's notes, which are no rewards. `unread` counts calls without a readable
    message, by scope, operation and attributes. `calls`, `agents`, `tool_calls` and `http_requests` are in order of
    start time (ties by id); agents[0] is the root. If no agent is above all others the root is inferred, and the agents
    directly below it come first, by id.
    """

    id: str
    revision: str
    project: str = ""
    entry: str = ""
    entry_name: str = ""
    scenario: str | None = None
    group: str | None = None
    regrouped: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    arguments: Any = None
    result: Any = None
    error: str | None = None
    start_ns: int = 0
    end_ns: int = 0
    agents: tuple[Agent, ...] = ()
    calls: tuple[AgentCall, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    http_requests: tuple[HttpRequest, ...] = ()
    http_lost: int = 0
    nodes: tuple[MessageNode, ...] = ()
    rewards: tuple[Reward, ...] = ()
    notes: tuple[Reward, ...] = ()
    incomplete: str = ""
    conflicts: int = 0
    unread: dict[str, int] = {}

    @property
    def policy_versions(self) -> tuple[str, ...]:
        """The distinct policy versions that answered, sorted."""
        return tuple(sorted({c.call.policy_version for c in self.calls if c.call.policy_version}))
