"""Traces of verifiers from version 0.3 on (`traces.jsonl`): episodes, each with the traces of its agents. Pure.

A trace is a graph of messages, each with the tokens that it adds to what came before; an answer's begin with those that
ask for it, and the mask says which of them the model sampled. A node that no model sampled is context, whoever says it;
an attempt to compact the context from which nobody went on is left out, as verifiers does not train on it.
Every trace is a run, with rewards that are weighted, and added up there as here. A group of episodes, or else a task,
is as many groups of runs as it has agents and tasks that these made for one another. Evaluations during a training run
are held out, and agents that it does not train are not to be trained here. What failed is incomplete, as are the whole
traces of an episode that failed: prime-rl trains on neither. Source: verifiers 0.4, v1/episode.py, v1/trace.py and
v1/graph.py; prime-rl, orchestrator/envs.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import ImportedRun, counted_as_failed, hashed
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.openai_messages import settings
from arttrace.records import semconv
from arttrace.records.span import Attributes
from arttrace.records.values.costs import cost_of_usage
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import time_ns
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.trajectories.decoding.attribute_values import finite

KIND = "verifiers traces"
_VERSION = 1
_ONLY_AGENT = "agent"
"""What an agent is called that is the only one of its environment, or nobody named."""
_READ = frozenset({"version", "id", "nodes", "calls", "tools", "rewards"})
_KEPT_OF_EPISODE = {"episode": "id", "env": "env", "group": "group", "run": "run", "episode_errors": "errors"}
_USAGE = (
    ("completion_tokens", semconv.USAGE_OUTPUT_TOKENS),
    ("cached_input_tokens", semconv.USAGE_CACHE_READ_INPUT_TOKENS),
    ("reasoning_tokens", semconv.USAGE_REASONING_OUTPUT_TOKENS),
)
_PER_TOKEN = ("advantages", "reference_logprobs", "trainer_logprobs", "entropies", "loss_weights")
_ATTEMPT, _COMPACTED = "compaction_attempt", "compaction"
"""How a node is linked to that of whose context it is a summary, and one that goes on from a summary to that."""

Node = dict[str, Any]


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is an episode, or a trace."""
    return _is_trace(item) or (isinstance(item.get("traces"), list) and "env" in item and "errors" in item)


def _is_trace(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("nodes"), list) and "agent" in item and "task" in item


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """One run for each trace. Raises ValueError where one is none, or of another version."""
    is_alone = _is_trace(item)
    env, group = json_object(item.get("env")), json_object(item.get("group")).get("id")
    task = _key(item) if isinstance(item.get("task"), dict) else None
    episode = {} if is_alone else {name: item.get(key) for name, key in _KEPT_OF_EPISODE.items() if item.get(key)}
    work = json_object(json_object(item.get("run")).get("work"))
    held_out = [semconv.HELD_OUT_TAG] if work.get("type") == "eval" else []
    traces = [item] if is_alone else item["traces"]
    for one in traces:
        if not _is_trace(one) or not isinstance(one.get("id"), str):
            raise ValueError("a trace of an episode has no id, nodes, agent or task")
        if one.get("version", _VERSION) != _VERSION:
            raise ValueError(f"version {one['version']!r} of the traces of verifiers is not known")
        agent, own = _agent(one), _key(one)
        scenario = "/".join(filter(None, (str(env.get("name") or env.get("id") or ""), agent, own)))
        # An agent that is given what another one made of the group's task attempts that, in whichever episode.
        compared = [group, agent, "" if task in (None, own) else own] if isinstance(group, str) and group else []
        own_tags = [semconv.NOT_TRAINABLE_TAG] if json_object(one["agent"]).get("trainable") is False else []
        of_run = {
            semconv.GROUP: "/".join(filter(None, compared)),
            semconv.TAGS: [*held_out, *own_tags] or None,
            semconv.INTERRUPTED: _failure(one, "it") or (None if is_alone else _failure(item, "its episode")),
        }
        trace_id = origin.id_of_own(KIND, one["id"])
        began = time_ns(json_object(one.get("timing")).get("start"))
        yield from _run(ImportedRun(origin.source, trace_id=trace_id, start_ns=began), one, scenario, episode, of_run)
    if not traces:
        yield LeftOutItem("episodes without a trace")


def _failure(item: Node, what: str) -> str | None:
    """Why a trace or an episode is no whole one. It says so itself, but for those of older versions; the errors may be
    of attempts before the last one."""
    errors = json_objects(item.get("errors"))
    if item.get("ok", not errors):
        return None
    return counted_as_failed("verifiers", what, errors[-1].get("type") if errors else None)


def _key(item: Node) -> str:
    """What names its task: newer versions say it."""
    task = json_object(item["task"])
    number = json_object(task.get("data")).get("idx")
    return str(task.get("key") or task.get("hash") or (hashed(16, task) if number is None else number))


def _agent(trace: Node) -> str:
    """The name of its agent, among several."""
    name = str(json_object(trace["agent"]).get("name") or "")
    return "" if name == _ONLY_AGENT else name


def _run(run: ImportedRun, trace: Node, task: str, episode: dict[str, Any], attributes: Attributes) -> Iterator[Read]:
    nodes = [_checked(one, at) for at, one in enumerate(trace["nodes"])]
    offered, has_own = json_objects(trace.get("tools")), any(node.get("tools") for node in nodes)
    in_vain = _attempts_in_vain(nodes)
    calls = json_objects(trace.get("calls"))
    named = {call["node"] for call in calls if isinstance(call.get("node"), int)}
    calls += [{"node": at} for at, node in enumerate(nodes) if node.get("sampled") and at not in named]
    last: Any = None
    for number, call in enumerate(calls):
        at = call.get("node")
        if not isinstance(at, int) or not 0 <= at < len(nodes):
            yield LeftOutItem("calls that failed, of which no message is kept")
            continue
        if at in in_vain:
            yield LeftOutItem("attempts to compact a context that were not taken up")
            continue
        path = _path(nodes, at)
        tokens = _tokens(path)
        if nodes[at].get("token_ids") and not tokens:
            yield LeftOutItem("token ids of answers whose mask does not say which were sampled")
        time = json_object(call.get("time"))
        yield run.call(
            number,
            [node["message"] for node in path[:-1]],
            [{**nodes[at]["message"], "finish_reason": call.get("finish_reason")}],
            start_ns=time_ns(time.get("start")),
            end_ns=time_ns(time.get("end")) or time_ns(nodes[at].get("timestamp")),
            model=call.get("model") if isinstance(call.get("model"), str) else None,
            offered=json_objects(path[0].get("tools")) if has_own else offered,
            attributes={**settings(call.get("sampling")), **_usage(json_object(call.get("usage"))), **tokens},
        )
        last = nodes[at]["message"].get("content")
    for node in nodes:
        if any(node.get(name) is not None for name in _PER_TOKEN):
            yield LeftOutItem("advantages, loss weights and other numbers for each token of a message")
    errors = json_objects(trace.get("errors"))
    error = f"{errors[-1].get('type')}: {errors[-1].get('message')}" if errors and not trace.get("ok") else None
    beside = {name: value for name, value in trace.items() if name not in _READ and value}
    yield run.end(
        task=task,
        metadata=episode | beside,
        result=last,
        error=error,
        attributes=attributes,
    )
    yield from run.rewards(_rewards(json_object(trace.get("rewards"))))


def _checked(node: Any, at: int) -> Node:
    message = node.get("message") if isinstance(node, dict) else None
    above = node.get("parent") if isinstance(node, dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f"node {at} has no message with a role")
    if above is not None and not (isinstance(above, int) and 0 <= above < at):
        raise ValueError(f"node {at} follows {above!r}, which is none of those before it")
    found: Node = node
    return found


def _path(nodes: Sequence[Node], at: int) -> list[Node]:
    """The nodes from the root to this one."""
    found = [nodes[at]]
    while (above := found[-1].get("parent")) is not None:
        found.append(nodes[above])
    return found[::-1]


def _attempts_in_vain(nodes: Sequence[Node]) -> set[int]:
    """The answers that were to compact a context, but for those that the agent went on from."""
    links = [(at, link) for at, node in enumerate(nodes) for link in json_objects(node.get("semantic_parents"))]
    followed = {node.get("parent") for node in nodes} | {
        link.get("node") for _, link in links if link.get("type") == _COMPACTED
    }
    return {at for at, link in links if link.get("type") == _ATTEMPT} - followed


def _tokens(path: Sequence[Node]) -> dict[str, Any]:
    """What the model read and sampled, where the sampled tokens are the last of the answer's."""
    own, mask = path[-1].get("token_ids") or [], path[-1].get("mask") or []
    logprobs = path[-1].get("logprobs") or []
    asked = mask.index(True) if True in mask else len(own)
    sampled = own[asked:]
    if not sampled or len(mask) != len(own) or not all(mask[asked:]):
        return {}
    given = [id for node in path[:-1] for id in node.get("token_ids") or []]
    return {
        semconv.PROMPT_TOKEN_IDS: encode_token_ids([*given, *own[:asked]]),
        semconv.TOKEN_IDS: encode_token_ids(sampled),
        semconv.LOGPROBS: encode_logprobs(logprobs) if len(logprobs) == len(sampled) else None,
    }


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """There, prompt tokens are those without the cached ones."""
    counts: dict[str, Any] = {name: usage[key] for key, name in _USAGE if isinstance(usage.get(key), int)}
    if isinstance(given := usage.get("prompt_tokens"), int):
        counts[semconv.USAGE_INPUT_TOKENS] = given + counts.get(semconv.USAGE_CACHE_READ_INPUT_TOKENS, 0)
    return {**counts, semconv.USAGE_COST: cost_of_usage(usage)}


def _rewards(given: Mapping[str, Any]) -> dict[str, Any]:
    """Each weighted; one that was not scored is none."""
    found: dict[str, Any] = {}
    for name, one in given.items():
        score, weight = finite(json_object(one).get("score")), finite(json_object(one).get("weight", 1.0))
        if one is not None:
            found[name] = one if score is None or weight is None else score * weight
    return found
