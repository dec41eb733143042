"""Who called whom: agents, sub-agents, traces and sessions. Each test states its outcome and the rule that forces
it."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from rich.console import Console
from simulated_agent import T0, Run, message, result

from arttrace.records.span import SpanLink, SpanRow
from arttrace.records.trajectory import Relation, Trajectory
from arttrace.rewards.transcript import transcript
from arttrace.trajectories import build_trajectories, sequences
from arttrace.views.terminal import trajectory_view


def built(spans: list[SpanRow]) -> Trajectory:
    [trajectory] = build_trajectories(spans)
    return trajectory


def family(trajectory: Trajectory) -> list[tuple[str, str | None]]:
    names = {agent.id: agent.name for agent in trajectory.agents}
    return [(agent.name, names.get(agent.parent_id or "")) for agent in trajectory.agents]


def expert(trace: str, **attributes: str) -> Run:
    """A sub-agent's own run in a trace of its own, by somebody else's SDK: an agent span with one call."""
    run = Run(trace)
    run.chat("c", [message("user", "asked")], message("assistant", "said"), at=20, flow=None, TRAJECTORY_ID=None)
    unknown = dict.fromkeys(("TRAJECTORY_ID", "TRAJECTORY_SPAN_COUNT", "ENTRY", "EXECUTION_ID"))
    run.end(at=30, AGENT_NAME="expert", **unknown, **attributes)
    return run


def test_a_sub_agent_with_its_own_trace_by_trajectory_id() -> None:
    """A shared explicit trajectory id joins traces: it is what travels in baggage."""
    main = Run("main")
    main.chat("m", [message("user", "u")], message("assistant", "x"), at=1)
    other = expert("other")
    other.spans[-1].attributes["arttrace.trajectory.id"] = "main"
    trajectory = built(main.end() + other.spans)
    assert family(trajectory) == [("planner", None), ("expert", "planner")]
    assert trajectory.incomplete == ""


def test_a_sub_agent_with_its_own_trace_by_link() -> None:
    """An agent whose parent is not there stands under the span it links to, in that span's trajectory."""
    main = Run("main")
    tool = main.tool("t", "ask", at=10, until=40)
    main.chat("m", [message("user", "u")], message("assistant", "x"), at=1)
    other = expert("other")
    other.spans[-1] = msgspec.structs.replace(other.spans[-1], links=[SpanLink(main.trace_id, tool)])
    spans = main.end() + other.spans
    trajectory = built(spans)
    assert family(trajectory) == [("planner", None), ("expert", "planner")]
    assert (trajectory.id, trajectory.agents[1].spawned_by) == ("main", tool)
    assert built(spans[::-1]) == trajectory


def test_a_remote_parent_that_is_not_ours() -> None:
    """The entry under somebody else's span is the root, and nothing is missing: that span is not part of the run."""
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1)
    spans = run.end()
    spans[-1] = msgspec.structs.replace(spans[-1], parent_span_id="beefbeefbeefbeef")
    assert (built(spans).incomplete, built(spans).agents[0].name) == ("", "planner")


def test_parents_in_a_cycle() -> None:
    """Its spans stay, under the root, and the trajectory says what was wrong (rule 3)."""
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1, parent=run.span_id("b"))
    run.chat("b", [message("user", "v")], message("assistant", "y"), at=2, parent=run.span_id("a"))
    spans = run.end()
    trajectory = built(spans)
    assert (len(trajectory.calls), trajectory.incomplete) == (2, "parents in a cycle")
    assert built(spans[::-1]) == trajectory


def test_nested_sub_agents() -> None:
    """Each stands under the one that started it, by span parents."""
    run = Run()
    outer = run.agent("outer", at=10, until=90)
    inner = run.agent("inner", at=20, until=80, parent=outer)
    run.chat("c", [message("user", "u")], message("assistant", "x"), at=30, parent=inner)
    trajectory = built(run.end())
    assert family(trajectory) == [("planner", None), ("outer", "planner"), ("inner", "outer")]
    assert trajectory.calls[0].relation == Relation.SUB_AGENT


def test_a_sub_agent_without_a_parent_id() -> None:
    """Named into the trajectory it stands under the root: not guessed from time."""
    run = Run()
    lone = run.agent("lone", at=10, until=20)
    run.chat("c", [message("user", "u")], message("assistant", "x"), at=12, parent=lone)
    spans = [msgspec.structs.replace(s, parent_span_id=None) if s.span_id == lone else s for s in run.end()]
    assert family(built(spans)) == [("planner", None), ("lone", "planner")]


def test_a_sub_agent_compacting_itself() -> None:
    """The compacted history stays with the sub-agent whose flow it is in, labelled as compaction."""
    run = Run()
    run.chat("m", [message("user", "plan")], message("assistant", "planned"), at=1)
    history = [message("system", "You research."), message("user", "find it")]
    for turn in range(3):
        history.append(
            run.chat(f"s{turn}", history, message("assistant", f"turn {turn}"), at=10 + turn, flow="E1", above="E0")
        )
        history.append(message("user", f"more {turn}"))
    asked = [*history, message("user", "summarise")]
    summary = run.chat("sum", asked, message("assistant", "we looked in many places"), at=20, flow="E1", above="E0")
    short = [*history[:2], message("user", "Summary: we looked in many places")]
    assert summary
    run.chat("s9", short, message("assistant", "found"), at=30, flow="E1", above="E0")
    trajectory = built(run.end())
    assert [len([c for c in trajectory.calls if c.agent_id == a.id]) for a in trajectory.agents] == [1, 5]
    last = trajectory.calls[-1]
    assert (last.relation, last.confidence) == (Relation.COMPACTION, 0.95)


def test_shared_prefix_parallel_branches() -> None:
    """Two calls that go on from one answer are two branches of one agent; sequences fork, tokens once (rule 5)."""
    run = Run()
    start = [message("user", "u")]
    first = run.chat("a", start, message("assistant", "x"), at=1)
    for number in range(2):
        run.chat(f"b{number}", [*start, first, message("user", f"branch {number}")], message("assistant", "y"), at=10)
    trajectory = built(run.end())
    assert len(trajectory.agents) == 1
    assert [call.relation for call in trajectory.calls[1:]] == [Relation.EXTENDS, Relation.EXTENDS]
    made, report = sequences(trajectory)
    assert (len(made), report.forks, report.trained_tokens) == (2, 1, report.captured_tokens)


def test_parallel_sub_agents_with_identical_prompts() -> None:
    """Two agents with two sequences: identity comes from the flow of control, messages cannot tell them apart."""
    run = Run()
    run.chat("m", [message("user", "u")], message("assistant", "x"), at=1)
    for number in (1, 2):
        history = [message("user", "the same")]
        history.append(run.chat(f"a{number}", history, message("assistant", "y"), at=10, flow=f"E{number}", above="E0"))
        history.append(message("user", "on"))
        run.chat(f"b{number}", history, message("assistant", "z"), at=20, flow=f"E{number}", above="E0")
    trajectory = built(run.end())
    assert len(trajectory.agents) == 3
    assert [sequence.call_ids for sequence in sequences(trajectory)[0][1:]] in (
        [(run.span_id("a1"), run.span_id("b1")), (run.span_id("a2"), run.span_id("b2"))],
        [(run.span_id("a2"), run.span_id("b2")), (run.span_id("a1"), run.span_id("b1"))],
    )


def sessions(*conversations: str | None, id: str | None = None) -> list[SpanRow]:
    """A trace of somebody else's SDK: under one server span an agent per conversation."""
    run = Run("served")
    for number, conversation in enumerate(conversations):
        agent = run.agent(f"agent{number}", at=10, until=20, CONVERSATION_ID=conversation, TRAJECTORY_ID=id)
        run.chat(
            f"c{number}",
            [message("user", "u")],
            message("assistant", "x"),
            at=12,
            parent=agent,
            flow=None,
            TRAJECTORY_ID=id,
        )
    return [*run.spans, SpanRow(run.trace_id, run.root_id, "POST /chat", 1, 2)]


def test_two_sessions_in_one_trace() -> None:
    """Different conversation ids split a trace that names no trajectory; a trace with one of them is not split."""
    spans = sessions("one", "two")
    trace = spans[0].trace_id
    made = build_trajectories(spans)
    assert sorted((t.id, t.agents[0].name, t.incomplete) for t in made) == [
        (f"{trace}:one", "agent0", ""),
        (f"{trace}:two", "agent1", ""),
    ]
    assert build_trajectories(spans[::-1]) == made
    assert [t.id for t in build_trajectories(sessions("one", "one"))] == [trace]
    assert [t.id for t in build_trajectories(spans, ids=[f"{trace}:two"])] == [f"{trace}:two"]
    assert build_trajectories(spans, ids=[trace]) == made


def test_an_explicit_trajectory_id_wins_over_conversations() -> None:
    """One trajectory: a shared explicit trajectory id joins and wins."""
    assert [t.id for t in build_trajectories(sessions("one", "two", id="run"))] == ["run"]


@pytest.mark.parametrize("id", ["session", None])
def test_one_session_over_many_traces(id: str | None) -> None:
    """Joined by an explicit trajectory id; a conversation id alone never joins traces, it is not the run's name."""
    runs = []
    for number in range(2):
        run = Run(f"trace{number}")
        run.chat(
            "a", [message("user", str(number))], message("assistant", "x"), at=number, flow=None, TRAJECTORY_ID=id,
            CONVERSATION_ID="conversation",
        )  # fmt: skip
        runs.append(msgspec.structs.replace(run.spans[0], parent_span_id=None))
    made = build_trajectories(runs)
    assert [len(trajectory.calls) for trajectory in made] == ([2] if id else [1, 1])


def test_tool_calls_recorded_and_reported_are_not_doubled() -> None:
    """A recorded execution and its result in the history are one call, paired by id (rule 2)."""
    run = Run()
    history = [message("user", "u")]
    history.append(run.chat("m1", history, message("assistant", calls=(("c", "look", "{}"),)), at=1))
    run.tool("t", "look", at=5, until=8, TOOL_CALL_ID="c", TOOL_CALL_ARGUMENTS="{}", TOOL_CALL_RESULT='"r"')
    run.chat("m2", [*history, result("c", "r")], message("assistant", "done"), at=10)
    assert [(call.id, call.inferred, call.result) for call in built(run.end()).tool_calls] == [("c", False, "r")]


def test_what_a_tool_span_does_not_say_the_messages_do() -> None:
    """Frameworks keep content out of their spans."""
    run = Run()
    history = [message("user", "u")]
    asked = message("assistant", calls=(("c", "look", '{"at": 1}'),))
    history.append(run.chat("m1", history, asked, at=1))
    run.tool("t", "look", at=5, until=8, TOOL_CALL_ID="c")
    run.chat("m2", [*history, result("c", "r")], message("assistant", "done"), at=10)
    found = [(call.id, call.inferred, call.arguments, call.result) for call in built(run.end()).tool_calls]
    assert found == [("c", False, '{"at": 1}', "r")]


@pytest.mark.parametrize("content", [True, False])
def test_an_id_that_each_answer_gives_its_tool_call_anew(content: bool) -> None:
    """As some servers count from 0 in each: recorded executions are told apart, and one that was not is there."""
    run = Run()
    history = [message("user", "u")]
    for turn, tool in enumerate(("look", "look", "add", "look")):
        arguments = json.dumps({"turn": turn})
        history.append(
            run.chat(f"m{turn}", history, message("assistant", calls=(("0", tool, arguments),)), at=10 * turn)
        )
        if turn in (0, 1):
            said = {"TOOL_CALL_ARGUMENTS": arguments, "TOOL_CALL_RESULT": f"r{turn}"} if content else {}
            run.tool(f"t{turn}", tool, at=10 * turn + 5, until=10 * turn + 8, TOOL_CALL_ID="0", **said)
        history.append(result("0", f"r{turn}"))
    run.chat("end", history, message("assistant", "done"), at=50)
    found = [(c.name, c.arguments, c.result, c.inferred, c.span_id) for c in built(run.end(at=99)).tool_calls]
    assert found == [
        ("look", '{"turn": 0}', "r0", False, run.span_id("t0")),
        ("look", '{"turn": 1}', "r1", False, run.span_id("t1")),
        ("add", '{"turn": 2}', "r2", True, ""),
        ("look", '{"turn": 3}', "r3", True, ""),
    ]


def at(span: SpanRow, start: int) -> SpanRow:
    return msgspec.structs.replace(span, start_ns=T0 + start, end_ns=T0 + start + 1)


def test_several_agents_above_the_rest_stand_side_by_side() -> None:
    """None of them is the root because its clock is early; what all that say it agree on is the run's (rule 4)."""
    named = {"gen_ai.operation.name": "invoke_agent", "arttrace.trajectory.id": "run", "arttrace.scenario": "s"}
    tops = [
        SpanRow(trace * 32, trace * 16, "invoke_agent", T0, T0 + 9, attributes={**named, "gen_ai.agent.name": name})
        for trace, name in (("b", "second"), ("a", "first"), ("c", "third"))
    ]
    for starts in ((1, 2, 3), (3, 1, 2), (2, 3, 1)):
        trajectory = built([at(top, start) for top, start in zip(tops, starts, strict=True)])
        root = trajectory.agents[0]
        assert (root.inferred, root.evidence) == (True, "no agent stands above all")
        assert family(trajectory)[1:] == [("first", "agent"), ("second", "agent"), ("third", "agent")]
        assert [agent.name for agent in transcript(trajectory).agents] == ["agent", "first", "second", "third"]
        out = io.StringIO()
        Console(file=out, width=100).print(trajectory_view(trajectory, *sequences(trajectory), None))
        drawn = [line.split()[-1] for line in out.getvalue().splitlines() if "── agent" in line]
        assert drawn == ["first", "second", "third"]
        assert (trajectory.scenario, trajectory.incomplete) == ("s", "")


@pytest.mark.parametrize("early", [True, False])
def test_a_router_and_a_guardrail_beside_the_agent_are_not_the_agent(early: bool) -> None:
    """Under a server's span, or named into one trajectory; the agent still says what the run is."""
    run = Run("served")
    agent = run.agent("helper", at=10, until=20, TRAJECTORY_ID=None, SCENARIO="s")
    for number, (name, parent) in enumerate((("router", None), ("own", agent), ("guard", None))):
        run.chat(
            name, [message("user", name)], message("assistant", "x"), at=5 * number if early else 30 - number,
            parent=parent, flow=None, TRAJECTORY_ID=None,
        )  # fmt: skip
    spans = [*run.spans, SpanRow(run.trace_id, run.root_id, "POST /chat", T0, T0 + 99_000)]
    trajectory = built(spans)
    assert built(spans[::-1]) == trajectory
    assert family(trajectory)[:2] == [("POST /chat", None), ("helper", "POST /chat")]
    of = {placed.call.messages[0].text: placed.agent_id for placed in trajectory.calls}
    assert of["own"] == agent
    assert agent not in (of["router"], of["guard"])
    assert (trajectory.scenario, trajectory.incomplete) == ("s", "")
