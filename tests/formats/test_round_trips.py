"""What is written and read again is the same run, as far as the format can hold it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from simulated_agent import Run, message, research_run, result

from arttrace.formats.datasets import art, atif, chat
from arttrace.formats.datasets.forms import Form, Unsuitable
from arttrace.formats.imported_files import read_file
from arttrace.records.message import message_hash
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.tokens import plain
from arttrace.rewards.combine import trajectory_reward
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.conversations import branches, conversations

_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
_arguments = st.one_of(
    st.dictionaries(st.sampled_from("abc"), st.one_of(st.integers(-9, 9), _texts, st.none()), max_size=2).map(
        json.dumps
    ),
    st.sampled_from(["", "[1]", "{broken", '{"a":1.0}', "null"]),
)
_turns = st.lists(
    st.one_of(
        st.tuples(st.just("say"), _texts.filter(bool), _texts.filter(bool)),
        st.tuples(st.just("call"), _arguments, _texts),
        st.tuples(st.just("shot"), _texts.filter(bool), _texts.filter(bool)),
    ),
    min_size=1,
    max_size=5,
)
_rewards = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.floats(-2, 2), st.sampled_from(["code", "judge"])), max_size=3
)
_quiet = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def a_run(turns: list[Any], tools: bool) -> list[SpanRow]:
    run = Run("r", scenario="s")
    offered = json.dumps([{"type": "function", "function": {"name": "f", "parameters": {}}}]) if tools else None
    shown: list[Any] = [message("system", "You help.")]
    for at, (kind, one, other) in enumerate(turns):
        if kind == "shot":
            shown += [message("user", one), message("assistant", other)]
            continue
        reply = message("assistant", other) if kind == "say" else message("assistant", calls=((f"c{at}", "f", one),))
        shown.append(message("user", f"{at} {one}"))
        run.chat(f"m{at}", shown, reply, at=10 * (at + 1), TOOL_DEFINITIONS=offered)
        shown = [*shown, reply] if kind == "say" else [*shown, reply, result(f"c{at}", other)]
    run.chat("last", [*shown, message("user", "so?")], message("assistant", "done"), at=900, TOOL_DEFINITIONS=offered)
    return run.end(METADATA='{"a": {"b": [1]}, "c": "d"}', TAGS=["x", "y"], ENTRY_RESULT='"done"')


def rewarded(spans: list[SpanRow], rewards: list[tuple[str, float, str]]) -> Trajectory:
    given = tuple(
        Reward(id=f"r{at}", trajectory_id="r", name=name, value=value, source=source, explanation="why", time_ns=at + 1)
        for at, (name, value, source) in enumerate(rewards)
    )
    [run] = build_trajectories(spans)
    return msgspec.structs.replace(run, rewards=given)


def again(document: Any) -> Trajectory:
    found = read_file(msgspec.json.encode(document, enc_hook=plain), "file")
    assert (found.refused, found.reasons, found.unread) == (0, [], {})
    records: list[Record] = found.records
    [run] = build_trajectories([record for record in records if isinstance(record, SpanRow)])
    return msgspec.structs.replace(run, rewards=tuple(one for one in records if isinstance(one, Reward)))


def shown(run: Trajectory, *, prompts: bool = True) -> Counter[Any]:
    """Every conversation: its messages, which are answers of the run, their tokens, and the tools."""
    choices = {
        (placed.call.span_id, choice.index): (placed.call, choice)
        for placed in run.calls
        for choice in placed.call.choices
    }
    found: Counter[Any] = Counter()
    for branch in branches(run):
        tokens = [choices[node.sampled_by[0]] for node, own in zip(branch.nodes, branch.is_target, strict=True) if own]
        found[
            (
                tuple(message_hash(node.message) for node in branch.nodes),
                branch.is_target,
                json.dumps(branch.tools),
                tuple(choice.token_ids for _, choice in tokens),
                tuple(choice.logprobs for _, choice in tokens),
                tuple(tuple(call.prompt_token_ids or ()) for call, _ in tokens) if prompts else (),
            )
        ] += 1
    return found


@_quiet
@given(_turns, st.booleans(), _rewards)
def test_atif_keeps_a_run_whole(turns: list[Any], tools: bool, rewards: list[tuple[str, float, str]]) -> None:
    before = rewarded(a_run(turns, tools), rewards)
    after = again(atif.document(before))
    assert shown(after) == shown(before)
    assert after.rewards == before.rewards
    same = ("id", "scenario", "group", "tags", "metadata", "result", "start_ns", "policy_versions", "error")
    assert {name: getattr(after, name) for name in same} == {name: getattr(before, name) for name in same}
    assert after.incomplete == ""


@_quiet
@given(_turns, st.booleans(), _rewards.filter(bool))
def test_art_keeps_what_it_trains_on(turns: list[Any], tools: bool, rewards: list[tuple[str, float, str]]) -> None:
    before = rewarded(a_run(turns, tools), rewards)
    row = art.trajectory(before, trajectory_reward(before), Counter())
    after = again(art.group("g", [row]))
    assert shown(after, prompts=False) == shown(before, prompts=False)
    assert trajectory_reward(after) == trajectory_reward(before)
    assert (after.id, after.scenario, after.tags, after.group) == ("r", "s", ("x", "y"), "g")
    assert after.incomplete == ""


_FORMS = st.sampled_from([Form.OPENAI_SFT, Form.TRL_SFT, Form.TRL_PROMPT_COMPLETION, Form.SHAREGPT])


@_quiet
@given(_turns, st.booleans(), _FORMS)
@example([("shot", "a", "b")], False, Form.OPENAI_SFT)
@example([("call", "null", "b")], False, Form.TRL_SFT)
@example([("call", '"text"', "b")], True, Form.SHAREGPT)
def test_conversations_that_a_form_of_training_data_holds_come_back(turns: list[Any], tools: bool, form: Form) -> None:
    for conversation in conversations(rewarded(a_run(turns, tools), [])):
        try:
            rows = list(chat.rows(form, conversation))
        except Unsuitable:
            continue
        one_answer_each = form is Form.TRL_PROMPT_COMPLETION
        of_rows = [(at,) for at in conversation.targets] if one_answer_each else [conversation.targets]
        for row, targets in zip(rows, of_rows, strict=True):
            [after] = conversations(again(row))
            wanted = conversation.messages[: targets[-1] + 1]
            assert [*map(message_hash, after.messages)] == [*map(message_hash, wanted)]
            assert (after.targets, after.tools) == (targets, conversation.tools)


def test_sub_agents_stay_what_they_were() -> None:
    before = rewarded(research_run("r", "s"), [("a", 1.0, "judge")])
    after = again(atif.document(before))
    assert shown(after) == shown(before)
    names = Counter(agent.name for agent in before.agents)
    assert Counter(agent.name for agent in after.agents) == names
    assert {agent.spawned_by for agent in after.agents} == {agent.spawned_by for agent in before.agents}
    assert shown(again(art.group("g", [art.trajectory(before, 1.0, Counter())])), prompts=False) == shown(
        before, prompts=False
    )
