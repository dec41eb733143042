"""How each call of an agent stands to the earlier ones: it extends one, samples it anew, edits or compacts it.

What the trie and the token ids show is a fact (confidence 1). Where a history starts anew it is compared with those of
the calls just before it, message by message; that is a reading, and says how sure it is. Labels steer nothing:
sequences follow from token ids alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from arttrace.records.call import Call
from arttrace.records.message import Message, OtherPart
from arttrace.records.trajectory import Agent, AgentCall, Relation
from arttrace.records.values.tokens import begins_with
from arttrace.trajectories.decoding.messages import MessageReader
from arttrace.trajectories.messages.trie import MessageTrie, without_reasoning

_LOOKED_AT = 4
"""Earlier calls that a history which starts anew is compared with."""
_QUOTED = 16
"""Characters of an answer that a summary must hold to be taken for it."""
_INSTRUCTING = ("system", "developer")


class Label(msgspec.Struct, frozen=True, gc=False):
    """As on AgentCall; `of` is the call that it is related to."""

    relation: Relation
    of: Call | None = None
    evidence: str = ""
    confidence: float = 1.0


def labelled(
    agent: Agent, numbers: Sequence[int], placed: Sequence[AgentCall], history: MessageTrie, reader: MessageReader
) -> list[AgentCall]:
    """The calls of one agent, in order of start, by number and as placed in its graph, with their labels."""
    calls = [item.call for item in placed]
    own = set(numbers)
    last_at: dict[int, Call] = {}
    continued: set[int] = set()
    found: list[AgentCall] = []
    for count, (number, item, call) in enumerate(zip(numbers, placed, calls, strict=True)):
        prompt, before = history.prompts[number], history.continues[number]
        recent = calls[max(0, count - _LOOKED_AT) : count]
        label = (
            _start(agent)
            if count == 0
            else _again(call, last_at.get(prompt))
            or (_branched(call, recent, reader) if before in continued else None)
            or (_going_on(call, history.calls[before], number in history.without_reasoning) if before in own else None)
            or _anew(call, recent, reader)
        )
        last_at[prompt] = call
        if before is not None:
            continued.add(before)
        found.append(
            msgspec.structs.replace(
                item,
                relation=label.relation,
                related_to=label.of.span_id if label.of else None,
                evidence=label.evidence,
                confidence=label.confidence,
            )
        )
    return found


def _start(agent: Agent) -> Label:
    if agent.parent_id is None:
        return Label(Relation.START)
    evidence = agent.evidence or f"its agent span is {agent.name}'s"
    return Label(Relation.SUB_AGENT, evidence=evidence, confidence=agent.confidence)


def _again(call: Call, earlier: Call | None) -> Label | None:
    """The same prompt once more."""
    if not call.messages:
        return Label(Relation.UNRELATED, evidence="its messages were not captured", confidence=0.0)
    if earlier is None:
        return None
    if earlier.tools != call.tools:
        return Label(Relation.TOOLS_CHANGED, earlier, f"the same prompt with {_other_tools(earlier, call)}")
    reason = _failure(earlier)
    if reason:
        return Label(Relation.RETRY, earlier, f"the same prompt after {reason}")
    return Label(Relation.REGENERATION, earlier, "the same prompt")


def _failure(call: Call) -> str:
    if call.error or call.interrupted:
        return f"a call that failed: {call.error or call.interrupted}"
    return "" if any(choice.message.parts for choice in call.choices) else "an empty answer"


def _going_on(call: Call, before: Call, without: bool) -> Label:
    """The answer of `before` and more; `without` says that it came back without its reasoning."""
    if before.tools != call.tools:
        return Label(Relation.TOOLS_CHANGED, before, f"goes on with {_other_tools(before, call)}")
    left = _left_sequence(before, call)
    if left is not None:
        reasoned = without or any(without_reasoning(choice.message) for choice in before.choices)
        relation = Relation.TEMPLATE_DROPPED_REASONING if reasoned else Relation.EDIT
        return Label(
            relation,
            before,
            f"the messages go on, the prompt's token ids leave at token {left}",
            0.9 if reasoned else 0.5,
        )
    if without and call.prompt_token_ids is None:
        return Label(Relation.TEMPLATE_DROPPED_REASONING, before, "the answer came back without its reasoning")
    return Label(Relation.EXTENDS, before)


def _left_sequence(before: Call, call: Call) -> int | None:
    """The first token at which a prompt is not what the call before it read and sampled; None when it extends it, or
    when the engine did not say."""
    prompt, earlier = call.prompt_token_ids, before.prompt_token_ids
    sampled = [choice.token_ids for choice in before.choices if choice.token_ids]
    if prompt is None or earlier is None or not sampled:
        return None
    shared = len(earlier) if begins_with(prompt, earlier) else _common(prompt, earlier)
    if shared < len(earlier):
        return shared
    rest = [len(ids) if (next := prompt[shared : shared + len(ids)]) == ids else _common(next, ids) for ids in sampled]
    return None if any(n == len(ids) for n, ids in zip(rest, sampled, strict=True)) else shared + max(rest)


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _other_tools(before: Call, call: Call) -> str:
    old, new = set(map(_tool_name, before.tools)), set(map(_tool_name, call.tools))
    said = [f"{sign}{name}" for sign, names in (("+", new - old), ("-", old - new)) for name in sorted(names)]
    return f"other tools ({', '.join(said) or 'the same names, defined otherwise'})"


def _tool_name(tool: Mapping[str, object]) -> str:
    function = tool.get("function")
    name = (function if isinstance(function, dict) else tool).get("name")
    return name if isinstance(name, str) else "unnamed"


# --- a history that starts anew ---------------------------------------------------------------------------------


def _anew(call: Call, earlier: Sequence[Call], reader: MessageReader) -> Label:
    new = [reader.hash(message) for message in call.messages]
    before = _most_alike(new, earlier, reader)
    if call.previous_response_id:
        return Label(Relation.UNRELATED, None, f"goes on from {call.previous_response_id}, not captured", 1.0)
    old_messages = _with_answer(before)
    stripped = [without_reasoning(message) or message for message in old_messages]
    if [*map(reader.hash, stripped)] == [
        reader.hash(without_reasoning(message) or message) for message in call.messages[: len(stripped)]
    ]:
        return Label(Relation.TEMPLATE_DROPPED_REASONING, before, "earlier answers came back without their reasoning")
    return _edited(call, new, before, [reader.hash(message) for message in old_messages], earlier)


def _branched(call: Call, earlier: Sequence[Call], reader: MessageReader) -> Label | None:
    """A history that goes on from an answer which another one already went on from, yet holds more of that other one:
    its middle was edited. None for a branch, which shares the beginning only."""
    new = [reader.hash(message) for message in call.messages]
    before = _most_alike(new, earlier, reader)
    old = [reader.hash(message) for message in _with_answer(before)]
    shared = _common(new, old)
    further = set(old[shared:]).intersection(new[shared:])
    return _edited(call, new, before, old, earlier) if further and shared < len(old) else None


def _most_alike(new: Sequence[str], earlier: Sequence[Call], reader: MessageReader) -> Call:
    known = set(new)
    return max(earlier, key=lambda other: (_shared_turns(other, known, reader), other.start_ns))


def _with_answer(call: Call) -> tuple[Message, ...]:
    return (*call.messages, *(choice.message for choice in call.choices[:1] if choice.message.parts))


def _shared_turns(call: Call, known: set[str], reader: MessageReader) -> int:
    return sum(m.role not in _INSTRUCTING and reader.hash(m) in known for m in _with_answer(call))


def _edited(call: Call, new: list[str], before: Call, old: list[str], earlier: Sequence[Call]) -> Label:
    left = Counter(old)
    kept: list[int] = []
    for index, item in enumerate(new):
        if left[item] > 0:
            left[item] -= 1
            kept.append(index)
    kept_turns = [index for index in kept if call.messages[index].role not in _INSTRUCTING]
    added = [index for index in range(len(new)) if index not in set(kept)]
    dropped = sum(left.values())
    summary = next((index for index in added if _quotes(call.messages[index], earlier)), None)
    if call.compacted or any(_says_compaction(call.messages[index]) for index in added):
        return Label(Relation.COMPACTION, before, "the sender says so")
    if summary is not None and dropped > 1:
        return Label(
            Relation.COMPACTION, before, f"message {summary} holds an earlier answer, {dropped} are gone", 0.95
        )
    if not kept_turns:
        common = "no message in common" + (" but the instructions" if kept else "")
        return Label(Relation.UNRELATED, before if kept else None, common, 0.8)
    changed = [index for index, (a, b) in enumerate(zip(new, old, strict=False)) if a != b]
    if 0 < len(changed) <= dropped and len(new) >= len(old) and changed[-1] < len(old) and set(changed) <= set(added):
        roles = sorted({call.messages[index].role for index in changed})
        return Label(Relation.EDIT, before, f"{len(changed)} changed in place ({', '.join(roles)})", 0.95)
    inside = [index for index in added if index < kept[-1] and call.messages[index].role not in _INSTRUCTING]
    if inside and len(new) < len(old):
        return Label(Relation.COMPACTION, before, f"{len(inside)} put in the place of {dropped} earlier ones", 0.8)
    return Label(Relation.EDIT, before, f"{dropped} of {len(old)} earlier messages are gone", 0.9)


def _quotes(message: Message, earlier: Sequence[Call]) -> bool:
    answers = (choice.message.text.strip() for call in earlier for choice in call.choices)
    return message.role != "tool" and any(len(a) >= _QUOTED and a in message.text for a in answers)


def _says_compaction(message: Message) -> bool:
    return any(isinstance(part, OtherPart) and part.value.get("type") == "compaction" for part in message.parts)
