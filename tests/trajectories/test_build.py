from __future__ import annotations

import json
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_agent import T0, Run, message, research_run, result

from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories, sequences


def built(spans: list[SpanRow], *rewards: Reward) -> Trajectory:
    [trajectory] = build_trajectories(spans, rewards)
    return trajectory


def names(trajectory: Trajectory) -> dict[str, str]:
    return {agent.id: agent.name for agent in trajectory.agents}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), duplicates=st.lists(st.integers(0, 15), max_size=10), lost=st.integers(0, 16))
def test_order_and_duplicates_do_not_matter(seed: int, duplicates: list[int], lost: int) -> None:
    spans = research_run("x", "s") + research_run("y", "s", ("same", "same"))
    if lost < len(spans):
        del spans[lost]
    rewards = [Reward(id="r", trajectory_id="x", value=1.0, time_ns=1), Reward(id="r", trajectory_id="x", value=0.0)]
    expected = build_trajectories(spans, rewards)
    delivered = spans + [spans[i] for i in duplicates if i < len(spans)]
    random.Random(seed).shuffle(delivered)
    again = build_trajectories(delivered, rewards[::-1])
    assert again == expected
    assert [sequences(t) for t in again] == [sequences(t) for t in expected]


def run_that_services_joined() -> Run:
    """Its parts in another order than they began in; two of them began at once."""
    run = Run("joined")
    run.update("second", at=30, TAGS=["b", "d"], METADATA='{"k": 3, "two": {"x": null}}')
    served = run.agent("service", at=20, until=25, TAGS=["c", "b"], METADATA='{"k": 2, "one": 1, "root": 0}')
    run.tool("served", "look", at=40, until=50, TRAJECTORY_SPAN_COUNT=0, TAGS=["e"], METADATA="no object")
    run.update("a tie", at=30, parent=served, TAGS=["f"], METADATA='{"k": 4}')
    run.chat("c", [message("user", "u")], message("assistant", "a"), at=60, TAGS=["none"], METADATA='{"none": 1}')
    run.end(TAGS=["z", "b"], METADATA='{"root": 9}')
    return run


def test_what_other_processes_say_of_the_run_is_merged_by_one_rule() -> None:
    run = run_that_services_joined()
    trajectory = built(run.spans)
    first, last = sorted([("second", ["b", "d"], 3), ("a tie", ["f"], 4)], key=lambda one: run.span_id(one[0]))
    tags = dict.fromkeys(["z", "b", "c", "b", *first[1], *last[1], "e"])
    assert trajectory.tags == tuple(tags)
    assert trajectory.metadata == {"root": 9, "k": last[2], "one": 1, "two": {"x": None}}
    assert (trajectory.incomplete, len(trajectory.calls), len(trajectory.tool_calls)) == ("", 1, 1)
    assert sorted(names(trajectory).values()) == ["planner", "service"]
    assert (trajectory.start_ns, trajectory.end_ns) == (T0, T0 + 1_000_000)
    for seed in range(30):
        delivered = [*run.spans, run.spans[seed % len(run.spans)]]
        random.Random(seed).shuffle(delivered)
        assert built(delivered) == trajectory


def test_what_another_process_says_hides_no_span_that_is_missing() -> None:
    run = run_that_services_joined()
    others = run.spans[:-1]
    for lost in others:
        trajectory = built([span for span in run.spans if span is not lost])
        known = semconv.TRAJECTORY_SPAN_COUNT in lost.attributes and lost.name != "invoke_agent service"
        assert bool(trajectory.incomplete) is not known, lost.name
    alone = built([span for span in others if span.name == "update"])
    assert alone.incomplete
    assert sorted(alone.tags) == ["b", "d", "f"]
    assert {*built(others).tags} == {*built(run.spans).tags} - {"z"}


def test_what_the_root_says() -> None:
    run = Run("id-1", scenario="s1")
    trajectory = built(
        run.end(
            at=500,
            GROUP="g",
            TAGS=["a", "b"],
            METADATA='{"k": 1}',
            ENTRY_ARGUMENTS='{"x": 2}',
            ENTRY_RESULT="[3]",
            PROJECT="p",
        )
    )
    assert (trajectory.id, trajectory.entry, trajectory.scenario, trajectory.group) == ("id-1", "agent:run", "s1", "g")
    assert (trajectory.tags, trajectory.metadata, trajectory.arguments) == (("a", "b"), {"k": 1}, {"x": 2})
    assert (trajectory.result, trajectory.project, trajectory.incomplete) == ([3], "p", "")
    assert (trajectory.start_ns, trajectory.end_ns) == (T0, T0 + 500_000)


def test_parallel_undecorated_sub_agents_are_found_and_named_by_the_tool_that_returned_their_answer() -> None:
    trajectory = built(research_run())
    root, *subs = trajectory.agents
    assert (root.name, root.inferred) == ("planner", False)
    assert [(sub.name, sub.parent_id, sub.spawned_by, sub.inferred) for sub in subs] == [
        ("research", root.id, "c0", True),
        ("research", root.id, "c1", True),
    ]
    calls = [sum(call.agent_id == agent.id for call in trajectory.calls) for agent in trajectory.agents]
    assert calls == [3, 2, 2]


def test_twins_with_identical_messages_stay_apart() -> None:
    trajectory = built(research_run(questions=("same", "same")))
    assert [sub.spawned_by for sub in trajectory.agents[1:]] == ["c0", "c1"]
    flows = {
        agent.id: {call.call.execution_id for call in trajectory.calls if call.agent_id == agent.id}
        for agent in trajectory.agents[1:]
    }
    assert sorted(flows.values(), key=str) == [{"E1"}, {"E2"}]


def test_a_continued_history_stays_with_its_agent_in_any_flow() -> None:
    run = Run()
    history = [message("user", "u")]
    for turn in range(3):  # asyncio.wait_for starts every call in a flow of its own
        answer = run.chat(f"{turn}", history, message("assistant", f"a{turn}"), at=10 * turn, flow=f"E{turn}")
        history += [answer, message("user", "go on")]
    trajectory = built(run.end())
    assert len(trajectory.agents) == 1


def test_an_agent_whose_whole_loop_runs_in_another_flow_is_itself() -> None:
    run = Run()
    history = [message("user", "u")]
    asked = message("assistant", calls=(("c", "helper", "{}"),))
    history.append(run.chat("m1", history, asked, at=1, flow="E1", above="E0"))
    run.chat("s", [message("user", "help")], message("assistant", "helped"), at=10, flow="E2", above="E1")
    history.append(result("c", "helped"))
    run.chat("m2", history, message("assistant", "done"), at=20, flow="E3", above="E0")
    trajectory = built(run.end())
    assert [(agent.name, agent.parent_id) for agent in trajectory.agents] == [
        ("planner", None),
        ("helper", run.root_id),
    ]


def test_nested_inferred_sub_agents() -> None:
    run = Run()
    run.chat("m", [message("user", "u")], message("assistant", "x"), at=1)
    run.chat("s", [message("user", "v")], message("assistant", "y"), at=2, flow="E1", above="E0")
    run.chat("t", [message("user", "w")], message("assistant", "z"), at=3, flow="E2", above="E1")
    root, outer, inner = built(run.end()).agents
    assert (outer.parent_id, inner.parent_id) == (root.id, outer.id)


def test_a_history_anew_in_the_same_flow_is_the_same_agent_unless_its_answer_became_a_tool_result() -> None:
    run = Run()
    history = [message("user", "u")]
    asked = message("assistant", calls=(("c", "summarise", "{}"),))
    history.append(run.chat("m1", history, asked, at=1))
    run.chat("s", [message("user", "sum this")], message("assistant", "in short"), at=10)
    history.append(result("c", "in short"))
    run.chat("m2", history, message("assistant", "done"), at=20)
    run.chat("m3", [message("user", "compacted")], message("assistant", "on"), at=30)
    trajectory = built(run.end())
    assert [(agent.name, agent.spawned_by) for agent in trajectory.agents] == [("planner", None), ("summarise", "c")]
    assert sum(call.agent_id == run.root_id for call in trajectory.calls) == 3


def test_calls_inside_a_tool_span_are_a_sub_agent_of_that_tool() -> None:
    run = Run()
    history = [message("user", "u")]
    history.append(run.chat("m1", history, message("assistant", calls=(("c", "search", "{}"),)), at=1))
    tool = run.tool("t", "search", at=10, until=30, TOOL_CALL_ID="c", TOOL_CALL_ARGUMENTS="{}", TOOL_CALL_RESULT="r")
    run.chat("s", [message("user", "v")], message("assistant", "y"), at=12, parent=tool)
    history.append(result("c", "r"))
    run.chat("m2", history, message("assistant", "done"), at=40)
    trajectory = built(run.end())
    assert [(agent.name, agent.spawned_by) for agent in trajectory.agents] == [("planner", None), ("search", "c")]
    [call] = trajectory.tool_calls
    assert (call.id, call.agent_id, call.result, call.inferred) == ("c", run.root_id, "r", False)


def test_decorated_sub_agents_stand_under_their_span_parent() -> None:
    run = Run()
    outer = run.agent("outer", at=10, until=90)
    inner = run.agent("inner", at=20, until=80, parent=outer)
    run.chat("c", [message("user", "u")], message("assistant", "x"), at=30, parent=inner)
    trajectory = built(run.end())
    assert [(agent.name, agent.parent_id) for agent in trajectory.agents] == [
        ("planner", None),
        ("outer", run.root_id),
        ("inner", outer),
    ]
    assert trajectory.calls[0].agent_id == inner


def test_tool_calls_are_inferred_in_the_order_asked_and_unanswered_ones_kept() -> None:
    run = Run()
    history = [message("user", "u")]
    asked = message("assistant", calls=(("1", "a", "{}"), ("2", "b", '{"x": 1}'), ("3", "c", "not json")))
    history.append(run.chat("m1", history, asked, at=1, until=2))
    history += [result("2", {"k": 1}), result("1", "first")]  # answered out of order, the third never
    run.chat("m2", history, message("assistant", "done"), at=10)
    calls = built(run.end()).tool_calls
    assert [(call.id, call.name, call.result) for call in calls] == [
        ("1", "a", "first"),
        ("2", "b", '{"k":1}'),
        ("3", "c", None),
    ]
    assert all(call.inferred for call in calls)
    assert (calls[0].start_ns, calls[0].end_ns) == (T0 + 2_000, T0 + 10_000)


def test_a_recorded_tool_call_without_an_id_is_matched_by_name_and_arguments() -> None:
    run = Run()
    history = [message("user", "u")]
    asked = message("assistant", calls=(("1", "a", '{"x": 1, "y": 2}'), ("2", "a", "{}")))
    history.append(run.chat("m1", history, asked, at=1))
    run.tool("t", "a", at=5, until=8, TOOL_CALL_ARGUMENTS='{"y":2,"x":1}', TOOL_CALL_RESULT="r")
    history += [result("1", "r"), result("2", "s")]
    run.chat("m2", history, message("assistant", "done"), at=10)
    calls = built(run.end()).tool_calls
    assert sorted((call.id, call.inferred, call.result) for call in calls) == [("1", False, "r"), ("2", True, "s")]


def test_duplicate_tool_call_ids_across_turns_are_two_calls() -> None:
    run = Run()
    history = [message("user", "u")]
    for turn in range(2):
        asked = message("assistant", calls=(("same", "a", json.dumps({"turn": turn})),))
        history.append(run.chat(f"m{turn}", history, asked, at=10 * turn))
        history.append(result("same", f"r{turn}"))
    run.chat("end", history, message("assistant", "done"), at=50)
    calls = built(run.end()).tool_calls
    assert [(call.id, call.result) for call in calls] == [("same", "r0"), ("same", "r1")]


def test_an_echo_with_null_content_or_reordered_arguments_goes_on() -> None:
    run = Run()
    start = [message("user", "u")]
    run.chat("a", start, message("assistant", calls=(("1", "f", '{"a": 1, "b": 2}'),)), at=1)
    echo = {
        "role": "assistant",
        "parts": [
            {"type": "text", "content": ""},
            {"type": "tool_call", "id": "1", "name": "f", "arguments": {"b": 2, "a": 1}},
        ],
    }
    run.chat("b", [*start, echo, result("1", "r")], message("assistant", "done"), at=10, flow="E9", above="E0")
    trajectory = built(run.end())
    assert len(trajectory.agents) == 1
    assert trajectory.calls[1].prompt_node in {node.id for node in trajectory.nodes}
    assert [call.result for call in trajectory.tool_calls] == ["r"]
    assert len(trajectory.nodes) == 4


def test_equal_histories_share_nodes_and_sampled_ones_say_by_whom() -> None:
    run = Run()
    start = [message("system", "s"), message("user", "u")]
    run.chat("a", start, message("assistant", "x"), at=1)
    run.chat("b", start, message("assistant", "y"), at=2)
    trajectory = built(run.end())
    assert len(trajectory.nodes) == 4
    sampled = {node.message.text: node.sampled_by for node in trajectory.nodes}
    assert sampled == {"s": (), "u": (), "x": ((run.span_id("a"), 0),), "y": ((run.span_id("b"), 0),)}
    one, two = trajectory.calls
    assert one.prompt_node == two.prompt_node


def test_other_tools_are_another_branch() -> None:
    run = Run()
    start = [message("user", "u")]
    run.chat("a", start, message("assistant", "x"), at=1, TOOL_DEFINITIONS='[{"type": "function"}]')
    run.chat("b", start, message("assistant", "x"), at=2)
    trajectory = built(run.end())
    assert len(trajectory.nodes) == 4
    assert trajectory.calls[0].call.tools == ({"type": "function"},)


def test_a_root_that_is_missing_leaves_an_incomplete_trajectory() -> None:
    spans = research_run()[:-1]
    trajectory = built(spans)
    assert trajectory.incomplete == "root missing"
    assert trajectory.agents[0].placeholder
    assert len(trajectory.calls) == 7
    whole = built(research_run())
    assert whole.incomplete == ""
    assert whole.revision != trajectory.revision


def test_a_parent_that_never_arrives_becomes_a_placeholder() -> None:
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1, parent="feedfeedfeedfeed")
    trajectory = built(run.end())
    assert trajectory.incomplete == "parent missing"
    assert [(a.id, a.placeholder, a.parent_id) for a in trajectory.agents][1] == (
        "feedfeedfeedfeed",
        True,
        run.root_id,
    )
    assert trajectory.calls[0].agent_id == "feedfeedfeedfeed"


def test_a_span_that_was_counted_but_did_not_arrive_is_missed() -> None:
    spans = research_run()
    del spans[3]
    assert built(spans).incomplete == "1 of 8 spans missing"


@pytest.mark.parametrize("write", [float, str, lambda count: f"{count}.0"])
def test_a_count_of_spans_in_another_type_still_counts(write: Callable[[int], object]) -> None:
    count = research_run()[-1].attributes[semconv.TRAJECTORY_SPAN_COUNT]
    whole, torn = research_run(), research_run()
    del torn[3]
    for spans, incomplete in ((whole, ""), (torn, "1 of 8 spans missing")):
        spans[-1].attributes[semconv.TRAJECTORY_SPAN_COUNT] = write(count)
        assert built(spans).incomplete == incomplete


@pytest.mark.parametrize("count", ["x", -1, True, [7], 1 << 70, float("inf")])
def test_a_count_of_spans_that_cannot_be_read_is_no_complete_run(count: object) -> None:
    spans = research_run()
    spans[-1].attributes[semconv.TRAJECTORY_SPAN_COUNT] = count
    assert built(spans).incomplete == "the number of its spans is unreadable"


def test_a_run_lacks_the_answers_that_it_asked_for_in_the_background() -> None:
    """What `responses.retrieve` brings is not recorded, and a next call's history goes on without it."""
    run = Run()
    asked = [message("user", "think long")]
    run.chat("a", asked, at=1, INTERRUPTED="background", PREVIOUS_RESPONSE_ID=None)
    run.chat("b", asked, message("assistant", "closed"), at=3, INTERRUPTED="closed")
    assert built(run.end()).incomplete == "answers asked for in the background: 1"


def test_an_interrupted_run_is_incomplete_and_a_failed_one_is_not() -> None:
    assert built(Run().end(INTERRUPTED="cancelled")).incomplete == "interrupted: cancelled"
    [root] = Run().end()
    failed = msgspec.structs.replace(root, status_code=2, status_message="ValueError: no")
    assert (built([failed]).incomplete, built([failed]).error) == ("", "ValueError: no")


@pytest.mark.parametrize(("how", "reason"), [("cancelled", ""), ("closed", ""), ("1 line missing", "1 line missing")])
def test_a_sub_agent_that_the_run_has_stopped_leaves_nothing_out(how: str, reason: str) -> None:
    """The slower of two, or one that took too long: what the agent does is not over. Any other reason counts."""
    run = Run()
    run.agent("slow", at=1, until=2, INTERRUPTED=how)
    assert built(run.end()).incomplete == (reason and f"interrupted: {reason}")


def test_of_two_spans_with_one_id_the_longer_wins_in_any_order() -> None:
    spans = research_run()
    shorter = msgspec.structs.replace(spans[0], attributes={})
    assert built([shorter, *spans]) == built([*spans, shorter])
    assert built([shorter, *spans]) == msgspec.structs.replace(built(spans), conflicts=1)


def test_an_entry_inside_somebody_elses_trace_is_the_root() -> None:
    spans = research_run()
    spans[-1] = msgspec.structs.replace(spans[-1], parent_span_id="beefbeefbeefbeef")
    trajectory = built(spans)
    assert (trajectory.incomplete, trajectory.agents[0].name) == ("", "planner")


def test_spans_without_an_id_join_the_run_above_them_and_other_traces_stay_out() -> None:
    spans = research_run()
    inner = SpanRow(spans[0].trace_id, "aaaaaaaaaaaaaaaa", "POST", T0, T0 + 1, parent_span_id=spans[0].span_id)
    other = SpanRow("f" * 32, "bbbbbbbbbbbbbbbb", "GET /", T0, T0 + 1)
    trajectory = built([*spans, inner, other])
    assert trajectory.id == "run"
    assert trajectory.incomplete == ""


def test_a_trace_without_agent_span_gets_a_root_of_its_own() -> None:
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1, flow=None, TRAJECTORY_ID=None)
    span = msgspec.structs.replace(run.spans[0], parent_span_id=None)
    trajectory = built([span])
    assert trajectory.id == run.trace_id
    assert (trajectory.agents[0].inferred, trajectory.incomplete, len(trajectory.calls)) == (True, "", 1)


def test_cycles_of_parents_and_garbage_attributes_do_no_harm() -> None:
    run = Run()
    run.chat("a", [], at=1, parent=run.span_id("b"), INPUT_MESSAGES="{not json", OUTPUT_MESSAGES="[1, null, {}]")
    run.chat("b", [], at=2, parent=run.span_id("a"), INPUT_MESSAGES=[{"role": "user", "parts": [{"type": "blob"}]}])
    trajectory = built(run.end())
    assert len(trajectory.calls) == 2
    sequences(trajectory)


def test_the_later_reward_with_an_id_wins() -> None:
    rewards = [
        Reward(id="r", trajectory_id="run", value=0.1, time_ns=1),
        Reward(id="r", trajectory_id="run", value=0.9, time_ns=2),
        Reward(id="q", trajectory_id="other", value=0.9, time_ns=2),
    ]
    assert [reward.value for reward in built(research_run(), *rewards).rewards] == [0.9]


def test_arguments_that_a_function_filled_up_are_still_the_same_tool_call() -> None:
    run = Run()
    history = [message("user", "u")]
    history.append(run.chat("m1", history, message("assistant", calls=(("1", "a", '{"x": 1}'),)), at=1))
    run.tool("t", "a", at=5, until=8, TOOL_CALL_ARGUMENTS='{"x": 1, "limit": 10}', TOOL_CALL_RESULT="r")
    run.chat("m2", [*history, result("1", "r")], message("assistant", "done"), at=10)
    assert [(call.id, call.inferred) for call in built(run.end()).tool_calls] == [("1", False)]


def test_decorated_agents_know_the_tool_call_that_started_them() -> None:
    run = Run()
    history = [message("user", "u")]
    asked = message("assistant", calls=(("1", "ask", "{}"), ("2", "look", '{"x": 1}')))
    history.append(run.chat("m1", history, asked, at=1))
    first = run.agent("expert", at=10, until=20, ENTRY_RESULT='"said"')
    tool = run.tool("t", "look", at=21, until=30, TOOL_CALL_ARGUMENTS='{"x": 1}')
    second = run.agent("looker", at=22, until=29, parent=tool, ENTRY_RESULT='"seen"')
    history += [result("1", "said"), result("2", "seen")]
    run.chat("m2", history, message("assistant", "done"), at=40)
    agents = {agent.id: agent for agent in built(run.end()).agents}
    assert (agents[first].spawned_by, agents[second].spawned_by) == ("1", "2")


def test_a_decorated_agent_below_an_inferred_one() -> None:
    run = Run()
    run.chat("m", [message("user", "u")], message("assistant", "x"), at=1)
    run.chat("s", [message("user", "v")], message("assistant", "y"), at=2, flow="E1", above="E0")
    inner = run.agent("inner", at=5, until=9, EXECUTION_ID="E2", EXECUTION_PARENT_ID="E1")
    agents = {agent.id: agent for agent in built(run.end()).agents}
    assert agents[agents[inner].parent_id or ""].inferred


def test_a_failed_call_with_tokens_is_not_trained_on() -> None:
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1)
    run.spans[0] = msgspec.structs.replace(run.spans[0], status_code=2, status_message="2 chunks are no JSON")
    _, report = sequences(built(run.end()))
    assert report.reasons == {"error": 1}


def test_instructions_before_nothing_before_a_message_and_as_plain_text() -> None:
    """A request may hold instructions alone; plain text is not the conventions' form, and is read all the same."""
    run = Run("r")
    shown = [message("system", "Be kind.")["parts"], "Be kind."]
    question, answer = message("user", "Who?"), message("assistant", "Me.")
    for number, instructions in enumerate(shown):
        for count, messages in enumerate(([], [question], [question, answer, question])):
            at = 10 * number + 3 * count
            text = json.dumps(instructions) if number == 0 else instructions
            run.chat(f"{number}{count}", messages, answer, at=at, until=at + 1, SYSTEM_INSTRUCTIONS=text)
    trajectory = built(run.end(at=50))
    assert [[one.role for one in placed.call.messages] for placed in trajectory.calls] == [
        ["system"],
        ["system", "user"],
        ["system", "user", "assistant", "user"],
        ["system"],
        ["system", "user"],
        ["system", "user", "assistant", "user"],
    ]


def test_a_joined_history_keeps_its_messages_under_instructions_of_plain_text() -> None:
    run = Run("r")
    first, second = message("user", "Who?"), message("user", "And you?")
    answer = message("assistant", "Me.")
    run.chat("one", [first], answer, at=1, RESPONSE_ID="r1", SYSTEM_INSTRUCTIONS="Be kind.")
    run.chat("two", [second], answer, at=10, PREVIOUS_RESPONSE_ID="r1", SYSTEM_INSTRUCTIONS="Be kind.")
    trajectory = built(run.end(at=50))
    assert [[one.text for one in placed.call.messages] for placed in trajectory.calls] == [
        ["Be kind.", "Who?"],
        ["Be kind.", "Who?", "Me.", "And you?"],
    ]
