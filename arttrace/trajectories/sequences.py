"""A trajectory's calls become token sequences to train on: exact, forked at the first divergence, each token once.

Every answer with token truth is a node; its parent is the answer whose prompt and sampled ids are the longest that
its own prompt ids begin with. A path from a root to a leaf is one sequence. Where answers fork, the shared sampled
tokens are targets in the continuation whose next call started earliest (ties: span id, choice index) and context in
the others. Nothing is tokenised again, nothing realigned; what cannot be trained on is counted with its reason.

Finding parents takes one sort: in the order of their ids, everything between a prefix and its extension begins
with that prefix, so a stack holds just the prefixes of what is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from arttrace.records.call import Call, Choice
from arttrace.records.message import has_media
from arttrace.records.sequence import NotTrained, TokenReport, TokenSequence
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.tokens import TokenIds, is_logprob, token_bytes

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.1, 2.0
"""Within these a temperature is trained on where the engine's log-probabilities include it. Below, the rounding of a
logit weighs more than what a step changes; 0 is no distribution."""


class _SampledAnswer(msgspec.Struct):
    """One answer with token truth. `end` is the prompt and the sampled ids."""

    call: Call
    choice: Choice
    prompt: TokenIds
    end: TokenIds
    parent: int | None = None
    children: list[int] = []

    @property
    def order(self) -> tuple[int, str, str, int]:
        return (self.call.start_ns, self.call.span_id, self.call.trace_id, self.choice.index)


def sequences(trajectory: Trajectory, *, policy: str | None = None) -> tuple[tuple[TokenSequence, ...], TokenReport]:
    """The token sequences of a trajectory, agent by agent in order of start, and what became of every call.

    With `policy`, the name of the policy to be trained, only what its versions sampled is a target.
    `captured_tokens` are all sampled tokens (by usage where the ids are missing): trained plus quarantined ones, those
    of a call that two instrumentations recorded once.
    `forks` counts sequences beyond the first of each agent.
    """
    made: list[TokenSequence] = []
    reasons: Counter[str] = Counter()
    quarantined_tokens = forks = 0
    text_only: set[int] = set()
    twice = _recorded_twice([placed.call for placed in trajectory.calls], policy, text_only)
    by_agent: dict[str, list[Call]] = {agent.id: [] for agent in trajectory.agents}
    for placed in trajectory.calls:
        by_agent.setdefault(placed.agent_id, []).append(placed.call)
    for agent_id, calls in by_agent.items():
        nodes: list[_SampledAnswer] = []
        for call in calls:
            if id(call) in twice:
                reasons[NotTrained.RECORDED_TWICE] += 1
                continue
            faults = _faults(call, policy, text_only)
            if any(faults):
                reasons[next(fault for fault in faults if fault)] += 1
            for choice, fault in zip(call.choices, faults, strict=False):
                if fault:
                    quarantined_tokens += len(choice.token_ids or ())
                elif choice.token_ids:
                    nodes.append(_node(call, choice))
            if not any(choice.token_ids for choice in call.choices):
                quarantined_tokens += call.output_tokens or 0
        leaves = _link(nodes)
        forks += max(0, len(leaves) - 1)
        owners = _owners(nodes)
        made += [_sequence(trajectory, agent_id, nodes, leaf, owners) for leaf in leaves]
    trained = sum(sequence.trained_tokens for sequence in made)
    return tuple(made), TokenReport(
        calls=len(trajectory.calls),
        captured_tokens=trained + quarantined_tokens,
        trained_tokens=trained,
        quarantined_tokens=quarantined_tokens,
        quarantined_calls=reasons.total(),
        forks=forks,
        reasons={str(reason): count for reason, count in sorted(reasons.items())},
    )


def why_not_trained(call: Call) -> NotTrained | None:
    """Why a call by itself cannot be trained on, None when all its answers can; that it was recorded twice only its
    trajectory says."""
    return next(filter(None, _faults(call, None, set())), None)


def _fault(call: Call, choice: Choice | None, text_only: set[int]) -> NotTrained | None:
    """Why an answer cannot be trained on, None when it can. A stream that was cut keeps the tokens it brought.
    `text_only` are the identities of messages that were seen to hold no media, which calls share.

    Log-probabilities are those of the policy itself, over the whole vocabulary, at temperature 1 or, where the engine
    says so, at the temperature of the request: tokens that were sampled otherwise did not come with the
    log-probabilities under which they were sampled, or could not have been others. What the model was shown beside
    its tokens (an image) the learner is not given, so that its log-probabilities would be of another question.
    """
    if call.collided:
        return NotTrained.COLLIDED
    if call.truncated:
        return NotTrained.TRUNCATED
    if call.masked:
        return NotTrained.MASKED
    if call.error and not call.interrupted:  # unreadable chunks, say: what there is need not be what was sampled
        return NotTrained.ERROR
    if choice is None or not _prompt(call, choice) or choice.token_ids is None:
        return (
            NotTrained.ERROR
            if call.error
            else NotTrained.IN_PROGRESS
            if choice is None and not call.end_ns
            else NotTrained.NO_TOKEN_IDS
        )
    logprobs = choice.logprobs
    if logprobs is None or len(logprobs) != len(choice.token_ids) or not all(map(is_logprob, logprobs)):
        return NotTrained.NO_LOGPROBS
    sampled = sum(len(other.token_ids or ()) for other in call.choices)
    if call.output_tokens is not None and call.interrupted is None and sampled != call.output_tokens:
        return NotTrained.COUNT_DIFFERS
    if not _is_prompt_whole(call):
        return NotTrained.PROMPT_COUNT_DIFFERS
    if call.temperature not in (None, 1.0) and not (
        call.processed_logprobs and LEAST_TEMPERATURE <= call.temperature <= MOST_TEMPERATURE
    ):
        return NotTrained.NOT_AT_TEMPERATURE_1
    if call.altered_sampling:
        return NotTrained.ALTERED_SAMPLING
    unseen = [message for message in call.messages if id(message) not in text_only]
    if any(map(has_media, unseen)):
        return NotTrained.MEDIA
    text_only.update(map(id, unseen))
    return None


def _foreign(call: Call, policy: str | None) -> NotTrained | None:
    if policy is None:
        return None
    if not call.policy_version:
        return NotTrained.NO_POLICY_VERSION
    return None if call.policy_version.rpartition("@")[0] == policy else NotTrained.OTHER_POLICY


def _is_prompt_whole(call: Call) -> bool:
    """Whether usage counts as many prompt tokens as there are ids; a limit on the length of attributes cuts them. Of
    several prompts in one call usage has the sum, and each may have several answers."""
    if not call.input_tokens:
        return True
    ids = sum(len(_prompt(call, choice)) for choice in call.choices)
    if any(choice.prompt_token_ids for choice in call.choices):
        return ids % call.input_tokens == 0
    return ids == call.input_tokens * len(call.choices)


def _recorded_twice(calls: Sequence[Call], policy: str | None, text_only: set[int]) -> set[int]:
    """The identities of calls that another instrumentation recorded too: the same response with the same tokens, at the
    same time. Of each the first that can be trained on counts, or the first of all."""
    twins: dict[tuple[Any, ...], list[Call]] = {}
    several = {id for id, count in Counter(map(_response, calls)).items() if id and count > 1}
    for call in calls:
        if (answer := _response(call)) in several and any(choice.token_ids for choice in call.choices):
            said = tuple((token_bytes(_prompt(call, one)), token_bytes(one.token_ids or ())) for one in call.choices)
            twins.setdefault((answer, said), []).append(call)
    further: set[int] = set()
    for same in twins.values():
        at_once: list[list[Call]] = []
        for call in sorted(same, key=_order):
            if at_once and any(call.start_ns < one.end_ns or call.start_ns == one.start_ns for one in at_once[-1]):
                at_once[-1].append(call)
            else:
                at_once.append([call])
        for calls_of_one in at_once:
            ranked = sorted(calls_of_one, key=lambda call: (any(_faults(call, policy, text_only)), *_order(call)))
            further.update(map(id, ranked[1:]))
    return further


def _response(call: Call) -> str:
    """The id of a response; that of a completion is, to clients of Anthropic's Messages API, the id of a message."""
    return (call.response_id or "").removeprefix("chatcmpl-").removeprefix("msg_")


def _order(call: Call) -> tuple[int, str, str]:
    return (call.start_ns, call.span_id, call.trace_id)


def _faults(call: Call, policy: str | None, text_only: set[int]) -> list[NotTrained | None]:
    """Of each choice why it cannot be trained on."""
    return [_fault(call, choice, text_only) or _foreign(call, policy) for choice in call.choices or (None,)]


def _prompt(call: Call, choice: Choice) -> Sequence[int]:
    return choice.prompt_token_ids or call.prompt_token_ids or ()


def _node(call: Call, choice: Choice) -> _SampledAnswer:
    prompt = TokenIds.of(_prompt(call, choice))
    return _SampledAnswer(call, choice, prompt, prompt.followed_by(choice.token_ids or ()), children=[])


def _link(nodes: list[_SampledAnswer]) -> list[int]:
    """Sets parents and children; returns the leaves in order."""
    events = [(node.end, 0, node.order, index) for index, node in enumerate(nodes)]
    events += [(node.prompt, 1, node.order, index) for index, node in enumerate(nodes)]
    events.sort(key=lambda event: event[:3])
    prefixes: list[tuple[TokenIds, int]] = []
    for data, is_prompt, _, index in events:
        while prefixes and not data.begins_with(prefixes[-1][0]):
            prefixes.pop()
        if is_prompt:
            nodes[index].parent = prefixes[-1][1] if prefixes else None
        elif not prefixes or prefixes[-1][0] != data:  # of equal ends the first in order is continued
            prefixes.append((data, index))
    for index in sorted(range(len(nodes)), key=lambda i: nodes[i].order):
        parent = nodes[index].parent
        if parent is not None:
            nodes[parent].children.append(index)
    leaves = [index for index, node in enumerate(nodes) if not node.children]
    return sorted(leaves, key=lambda i: nodes[i].order)


def _owners(nodes: Sequence[_SampledAnswer]) -> list[int]:
    """For every node the leaf in whose sequence its tokens are targets."""
    owners = list(range(len(nodes)))
    for index in sorted(range(len(nodes)), key=lambda i: -len(nodes[i].end)):  # children are longer
        if nodes[index].children:
            owners[index] = owners[nodes[index].children[0]]
    return owners


def _sequence(
    trajectory: Trajectory, agent_id: str, nodes: Sequence[_SampledAnswer], leaf: int, owners: Sequence[int]
) -> TokenSequence:
    path: list[int] = [leaf]
    while (parent := nodes[path[-1]].parent) is not None:
        path.append(parent)
    path.reverse()
    last = nodes[leaf]
    token_ids = (*_prompt(last.call, last.choice), *(last.choice.token_ids or ()))
    trained = [0] * len(token_ids)
    logprobs: list[float | None] = [None] * len(token_ids)
    versions = [-1] * len(token_ids)
    temperatures: dict[int, float] = {}
    names: list[str] = []
    for index in path:
        node = nodes[index]
        if owners[index] != leaf:
            continue
        name = node.call.policy_version or ""
        if name not in names:
            names.append(name)
        start, count = len(_prompt(node.call, node.choice)), len(node.choice.token_ids or ())
        trained[start : start + count] = [1] * count
        logprobs[start : start + count] = node.choice.logprobs or ()
        versions[start : start + count] = [names.index(name)] * count
        if node.call.temperature not in (None, 1.0):
            temperatures |= dict.fromkeys(range(start, start + count), node.call.temperature)
    return TokenSequence(
        trajectory_id=trajectory.id,
        revision=trajectory.revision,
        agent_id=agent_id,
        token_ids=token_ids,
        trained=tuple(trained),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        policy_versions=tuple(names),
        call_ids=tuple(nodes[index].call.span_id for index in path),
        temperatures=tuple(temperatures.get(place, 1.0) for place in range(len(token_ids))) if temperatures else (),
    )
