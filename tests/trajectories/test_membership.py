"""Whose span is this: what ties spans together when some of them were lost, name conversations, or share ids."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_agent import T0, Run, hexid, message

from arttrace.formats.sdks.tolerant import normalised
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import SpanLink, SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories, sequences

AGENT, TOOL, CALL = "invoke_agent", "execute_tool", "chat"
A, B, C = hexid("a", 32), hexid("b", 32), hexid("c", 32)


def span(
    trace: str,
    name: str,
    parent: str | None = None,
    operation: str | None = CALL,
    link: tuple[str, str] | None = None,
    run: str | None = None,
    **attributes: Any,
) -> SpanRow:
    """A span of somebody else's SDK; `link` is (trace, name), `run` the trajectory that it names."""
    given = {
        semconv.OPERATION_NAME: operation,
        semconv.TRAJECTORY_ID: run,
        semconv.AGENT_NAME: name if operation == AGENT else None,
        semconv.OUTPUT_MESSAGES: f'[{{"role":"assistant","parts":[{{"type":"text","content":"{name}"}}]}}]',
        **{getattr(semconv, key): value for key, value in attributes.items()},
    }
    return SpanRow(
        trace_id=trace,
        span_id=hexid(name),
        parent_span_id=None if parent is None else hexid(parent),
        name=name,
        start_ns=T0,
        end_ns=T0 + 10,
        attributes={key: value for key, value in given.items() if value is not None},
        links=[SpanLink(link[0], hexid(link[1]))] if link else [],
    )


def shown(spans: list[SpanRow]) -> dict[str, tuple[int, str]]:
    """Calls and what is missing, by trajectory; the same from a store, whatever the order and the batches."""
    built = build_trajectories(spans)
    for seed in range(3):
        assert build_trajectories(random.Random(seed).sample(spans, len(spans))) == built
    return {one.id: (len(one.calls), one.incomplete) for one in built}


def in_two_traces(root_names: str | None = None) -> list[SpanRow]:
    """A main agent whose tool started an agent in a trace of its own, which links to the tool."""
    return [
        span(A, "main", operation=AGENT, run=root_names),
        span(A, "plan", "main"),
        span(A, "ask", "main", TOOL),
        span(B, "expert", None, AGENT, link=(A, "ask")),
        span(B, "think", "expert"),
    ]


def without(spans: list[SpanRow], *names: str) -> list[SpanRow]:
    return [one for one in spans if one.name not in names]


@pytest.mark.parametrize("named", ["run", None])
def test_a_lost_span_between_two_traces_of_a_run_is_missed_in_the_run(named: str | None) -> None:
    spans = in_two_traces(named)
    assert shown(spans) == {named or A: (2, "")}
    assert shown(without(spans, "ask")) == {named or A: (2, "parent missing")}
    assert shown(without(spans, "main")) == {A: (2, "root missing")}


def test_a_lost_span_below_which_nothing_names_the_run_is_missed_in_the_run() -> None:
    """The other trace is the run's because its agent says so; what lost its parent there says nothing."""
    spans = [
        span(A, "main", operation=AGENT, run="run"),
        span(B, "expert", None, AGENT, run="run"),
        span(B, "search", "expert", TOOL),
        span(B, "read", "search"),
    ]
    assert shown(spans) == {"run": (1, "")}
    assert shown(without(spans, "search")) == {"run": (1, "parent missing")}


def test_a_chain_of_lost_links_leads_to_the_run() -> None:
    spans = [
        *in_two_traces("run"),
        span(B, "deeper", "expert", TOOL),
        span(hexid("c", 32), "deep", None, AGENT, link=(B, "deeper")),
        span(hexid("c", 32), "deep call", "deep"),
    ]
    assert shown(spans) == {"run": (3, "")}
    assert shown(without(spans, "ask", "deeper")) == {"run": (3, "parent missing")}


@pytest.mark.parametrize("named", ["run", None])
def test_what_lost_its_tie_is_missed_in_the_run_of_a_trace_that_it_leads_back_to(named: str | None) -> None:
    """An agent in another trace starts one in the first trace again: when it is lost, the first run may lack both."""
    spans = [
        *in_two_traces(named),
        span(B, "search", "expert", TOOL),
        span(A, "back", None, AGENT, link=(B, "search")),
        span(A, "read", "back"),
    ]
    assert shown(spans) == {named or A: (3, "")}
    assert shown(without(spans, "search")) == {named or A: (3, "parent missing")}
    lost = "may lack spans whose parent did not arrive: 4"
    assert shown(without(spans, "expert")) == {named or A: (1, lost), B: (2, "root missing")}
    other = [span(C, "other", None, AGENT), span(C, "else", "other")]
    assert shown([*without(spans, "expert"), *other])[C] == (1, ""), "nothing leads to its trace"


def test_what_links_to_a_trace_that_never_arrived_is_missed_in_the_run_of_its_own_trace() -> None:
    spans = [*in_two_traces("run")[:4], span(A, "back", None, AGENT, link=(B, "expert")), span(A, "read", "back")]
    assert shown(spans) == {"run": (2, "")}
    lost = "may lack spans whose parent did not arrive: 2"
    assert shown(without(spans, "expert")) == {"run": (1, lost), A: (1, "linked span missing: 1")}


def test_where_it_cannot_be_known_every_run_that_may_lack_a_span_says_so() -> None:
    spans = [
        span(A, "POST", operation=None),
        span(A, "first", "POST", AGENT, run="one"),
        span(A, "second", "POST", AGENT, run="two"),
        span(A, "ask", "first", TOOL),
        *in_two_traces()[3:],
    ]
    assert shown(spans) == {"one": (1, ""), "two": (0, "")}
    lost = "may lack spans whose parent did not arrive: 2"
    assert shown(without(spans, "ask")) == {"one": (0, lost), "two": (0, lost), B: (1, "linked span missing: 1")}


def test_a_link_to_what_never_arrived_is_missed() -> None:
    """As a parent would be; what stands above a decorated entry is somebody else's."""
    spans = in_two_traces()
    missing = {B: (1, "linked span missing: 1")}
    assert shown(spans[3:]) == missing
    assert shown([span(A, "queue", operation=None), *spans[3:]]) == missing
    entry = span(B, "entry", None, AGENT, link=(A, "ask"), run="run", ENTRY="agent:run")
    assert shown([entry, span(B, "call", "entry")]) == {"run": (1, "")}


def test_a_lost_link_is_missed_though_its_agent_names_the_run(tmp_path: Path) -> None:
    spans = [*in_two_traces("run")[:3], span(B, "expert", None, AGENT, link=(A, "ask"), run="run")]
    assert shown(spans) == {"run": (1, "")}
    assert shown(without(spans, "ask")) == {"run": (1, "linked span missing: 1")}
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        for missing, late in (("linked span missing: 1", without(spans, "ask")), ("", [spans[2]])):
            store.append(late)
            assert [(one.id, one.incomplete) for one in store.summaries()] == [("run", missing)]


def test_a_link_to_a_lost_span_above_an_entry_ties_to_nothing_of_its_run() -> None:
    """A server's span, say, above the entry of a run, to which work in the background links."""
    served = span(A, "ask", operation=None)
    entry = span(A, "entry", "ask", AGENT, run="run", ENTRY="agent:run")
    spans = [served, entry, span(A, "call", "entry"), *in_two_traces()[3:]]
    assert shown(spans) == {"run": (1, ""), B: (1, "")}
    assert shown(without(spans, "ask")) == {"run": (1, ""), B: (1, "linked span missing: 1")}


def test_a_link_to_a_span_of_nobodys_run_ties_to_nothing() -> None:
    """As a consumer's to the message that it works on; what stands above that span, and is lost, may be the run's."""
    work = in_two_traces()[3:]
    sent = span(A, "ask", "queue", operation=None)
    queue = span(A, "queue", operation=None)
    assert shown([queue, sent, *work]) == {B: (1, "")}
    assert shown([sent, *work]) == {B: (1, "linked span missing: 1")}
    served = span(A, "served", "queue", AGENT, run="other", ENTRY="agent:run")
    assert shown([queue, sent, *work, served]) == {"other": (0, ""), B: (1, "")}
    assert shown([queue, sent, *work, span(A, "main", "queue", AGENT)]) == {A: (1, "")}


@pytest.mark.parametrize("named", ["run", None])
def test_a_lost_parent_is_missed_though_a_link_tells_whose_its_agent_is(named: str | None) -> None:
    """And in whatever else the parent may have been a part of; what stands above an entry is somebody else's."""
    link, begun = (A, "ask"), in_two_traces(named)[:3]
    main = [*begun, span(B, "expert", "lost", AGENT, link=link), span(B, "think", "expert")]
    missed = {named or A: (2, "parent missing")}
    assert shown(main) == missed
    entries = [
        span(B, name, above, AGENT, run=name, ENTRY="agent:run") for name, above in (("i", "think"), ("s", "lost"))
    ]
    assert shown([*main, *entries]) == {**missed, "i": (0, ""), "s": (0, "")}
    other = [span(B, "other", None, AGENT, run="other"), span(B, "said", "other")]
    assert shown([*main, *other]) == {**missed, "other": (1, "may lack spans whose parent did not arrive: 2")}
    entry = span(B, "entry", "lost", AGENT, link=link, ENTRY="agent:run")
    assert shown([*begun, entry]) == {named or A: (1, "")}


def test_a_torn_agent_above_an_entry_is_no_part_of_the_entrys_run() -> None:
    inner = span(A, "inner", "outer", AGENT, run="run", ENTRY="agent:run")
    spans = [inner, span(A, "call", "inner"), span(A, "outer", "lost", AGENT), span(A, "outer call", "outer")]
    assert shown(spans) == {"run": (1, ""), A: (1, "root missing")}


def test_what_stands_beside_an_entry_under_somebody_elses_span_is_no_part_of_its_run() -> None:
    entry = span(A, "entry", "gateway", AGENT, run="run", ENTRY="agent:run")
    spans = [entry, span(A, "call", "entry"), span(A, "guard", "gateway")]
    assert shown(spans) == {"run": (1, ""), A: (1, "root missing")}


def test_a_parent_joins_what_conversations_would_part(tmp_path: Path) -> None:
    """A tool that runs its agent in a session of its own, as Google's ADK does; the reward reaches both."""
    spans = [
        span(A, "invocation", operation=None),
        span(A, "main", "invocation", AGENT, CONVERSATION_ID="one"),
        span(A, "plan", "main", CONVERSATION_ID="one"),
        span(A, "ask", "main", TOOL),
        span(A, "inner invocation", "ask", None),
        span(A, "expert", "inner invocation", AGENT, CONVERSATION_ID="two"),
        span(A, "think", "expert", CONVERSATION_ID="two"),
    ]
    assert shown(spans) == {A: (2, "")}
    [trajectory] = build_trajectories(spans, [Reward(id="r", trajectory_id=A, value=1.0)])
    assert [agent.name for agent in trajectory.agents] == ["main", "expert"]
    assert len(trajectory.rewards) == 1
    apart = [*spans, span(A, "other", "invocation", AGENT, CONVERSATION_ID="three"), span(A, "said", "other")]
    assert shown(apart) == {f"{A}:one": (2, ""), f"{A}:three": (1, "")}
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append(apart)
        rows = store.sql("SELECT id, calls FROM trajectories ORDER BY id")[1]
        assert rows == [(f"{A}:one", 2), (f"{A}:three", 1)]


def test_a_torn_tree_finds_its_conversation() -> None:
    spans = [
        span(A, "POST", operation=None),
        span(A, "first", "POST", AGENT, CONVERSATION_ID="one"),
        span(A, "second", "POST", AGENT, CONVERSATION_ID="two"),
        span(A, "said", "lost", CONVERSATION_ID="two"),
    ]
    lost = "may lack spans whose parent did not arrive: 1"
    assert shown(spans) == {f"{A}:one": (0, lost), f"{A}:two": (1, "parent missing")}
    whole = [*spans, span(A, "lost", "second", TOOL)]
    assert shown(whole) == {f"{A}:one": (0, ""), f"{A}:two": (1, "")}


def test_a_torn_tree_that_says_another_runs_conversation_is_missed_in_its_own(tmp_path: Path) -> None:
    """A tool of the first run asked an agent in the session that is the second run's: nothing but the tool's span, and
    that was lost, tells whose it is."""
    spans = [
        span(A, "POST", operation=None),
        span(A, "first", "POST", AGENT, CONVERSATION_ID="one"),
        span(A, "ask", "first", TOOL),
        span(A, "expert", "ask", AGENT, CONVERSATION_ID="two"),
        span(A, "think", "expert", CONVERSATION_ID="two"),
        span(A, "second", "POST", AGENT, CONVERSATION_ID="two"),
    ]
    assert shown(spans) == {f"{A}:one": (1, ""), f"{A}:two": (0, "")}
    torn = without(spans, "ask")
    lost = "may lack spans whose parent did not arrive: 2"
    assert shown(torn) == {f"{A}:one": (0, lost), f"{A}:two": (1, "parent missing")}
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append(torn)
        assert {one.id: one.incomplete for one in store.summaries()} == {
            f"{A}:one": lost,
            f"{A}:two": "parent missing",
        }


@pytest.mark.parametrize("deep", [False, True])
def test_a_torn_tree_that_conversations_part_is_nowhere_complete(deep: bool) -> None:
    """What was lost above may have joined them: each may lack the others."""
    spans = [
        span(A, "POST", operation=None),
        span(A, "work", "POST", operation=None),
        span(A, "more work", "work" if deep else "POST", operation=None),
        span(A, "first", "work", AGENT, CONVERSATION_ID="one"),
        span(A, "said", "first"),
        span(A, "second", "more work" if deep else "work", AGENT, CONVERSATION_ID="two"),
    ]
    assert shown(spans) == {f"{A}:one": (1, ""), f"{A}:two": (0, "")}
    lost = "may lack spans whose parent did not arrive"
    assert shown(without(spans, "POST")) == {f"{A}:one": (1, f"{lost}: 1"), f"{A}:two": (0, f"{lost}: 2")}


def nested(name: str, conversation: str | None) -> list[SpanRow]:
    """An agent that says a conversation or none, and whose tool runs an agent in the session "inner"."""
    return [
        span(A, name, operation=AGENT, CONVERSATION_ID=conversation),
        span(A, f"{name} asks", name, TOOL),
        span(A, f"{name} runs", f"{name} asks", None),
        span(A, f"{name} expert", f"{name} runs", AGENT, CONVERSATION_ID="inner"),
        span(A, f"{name} call", f"{name} expert"),
    ]


@pytest.mark.parametrize("conversation", [None, "two"])
def test_a_conversation_that_stands_within_several_runs_does_not_tell_whose_a_torn_tree_is(
    conversation: str | None,
) -> None:
    other = span(A, "other", operation=AGENT, CONVERSATION_ID="one")
    spans = [*nested("first", None), *nested("second", conversation), other]
    lost = "may lack spans whose parent did not arrive: 2"
    found = shown(without(spans, "second runs"))
    of_second = f"{A}:two" if conversation else A
    assert found == {of_second: (0, lost), f"{A}:one": (0, lost), f"{A}:inner": (2, "parent missing")}


# --- ids that stand for several spans --------------------------------------------------------------------------


def seeded(number: int, named: bool) -> list[SpanRow]:
    """One of several runs of a program that seeds `random` before ids are made of it: the ids of all runs agree."""
    run = Run("seeded")
    run.chat("c", [message("user", f"question {number}")], message("assistant", f"answer {number}"), at=1)
    changed = {semconv.TRAJECTORY_ID: f"run{number}" if named else None}
    return [
        msgspec.structs.replace(
            one, attributes={k: v for k, v in {**one.attributes, **changed}.items() if v is not None}
        )
        for one in run.end()
    ]


@pytest.mark.parametrize("named", [True, False])
def test_runs_that_share_their_ids_are_not_complete_nor_trained_on(named: bool) -> None:
    spans = [one for number in range(4) for one in seeded(number, named)]
    for seed in range(5):
        built = build_trajectories(random.Random(seed).sample(spans, len(spans)))
        assert built == build_trajectories(spans)
    assert built
    for trajectory in built:
        assert "stand for several spans" in trajectory.incomplete
        made, report = sequences(trajectory)
        assert made == ()
        assert report.reasons == ({"other content under its id": 1} if trajectory.calls else {})


def test_a_span_that_says_more_than_the_same_one_is_no_collision() -> None:
    """Delivered twice, once through a collector that adds to it, or first in progress."""
    spans = seeded(0, named=True)
    more = [msgspec.structs.replace(s, attributes={**s.attributes, "added": 1}, resource={"host": "h"}) for s in spans]
    begun = [msgspec.structs.replace(s, end_ns=0) for s in spans]
    [trajectory] = build_trajectories([*spans, *more, *begun])
    assert (trajectory.incomplete, trajectory.conflicts) == ("", 2)


def test_span_ids_that_two_traces_of_a_run_share() -> None:
    """Every call is there once, with the agent that made it, and its tokens are trained once."""
    first = Run("trace one")
    agent = first.agent("helper", at=1, until=20)
    tool = first.tool("t", "look", at=2, until=9, parent=agent)
    first.chat("c", [message("user", "one")], message("assistant", "x"), at=3, parent=agent)
    first.chat("d", [message("user", "inner")], message("assistant", "y"), at=4, parent=tool)
    first.end()
    other = [
        msgspec.structs.replace(s, trace_id=B, attributes={**s.attributes, semconv.REQUEST_MODEL: "other"})
        for s in first.spans[:-1]
    ]
    [trajectory] = build_trajectories([*first.spans, *other])
    assert len(trajectory.calls) == len({(c.call.trace_id, c.call.span_id) for c in trajectory.calls}) == 4
    assert len({tool.id for tool in trajectory.tool_calls}) == 2
    assert len({agent.id for agent in trajectory.agents}) == len(trajectory.agents)
    made, report = sequences(trajectory)
    calls = list(itertools.chain.from_iterable(one.call_ids for one in made))
    assert len(calls) == len(set(calls)) == 4
    assert report.trained_tokens == report.captured_tokens


# --- any run, any loss -----------------------------------------------------------------------------------------


@st.composite
def runs(draw: st.DrawFn) -> list[SpanRow]:
    """A run over several traces: a root that may name the trajectory, and spans that stand under any earlier one, in
    its trace or, an agent, by a link from another, which may be the first again."""
    named = draw(st.sampled_from(["run", None]))
    spans = [span(A, "0", operation=AGENT, run=named, CONVERSATION_ID=draw(st.sampled_from(["one", None])))]
    for number in range(1, draw(st.integers(2, 8))):
        above = draw(st.sampled_from([one for one in spans if one.attributes[semconv.OPERATION_NAME] != CALL]))
        operation = draw(st.sampled_from([AGENT, TOOL, CALL]))
        conversation = draw(st.sampled_from(["one", "two", None]))
        trace = draw(st.sampled_from([hexid(f"trace {number}", 32), A]))
        if operation == AGENT and draw(st.booleans()):
            linked = (above.trace_id, above.name)
            spans.append(span(trace, str(number), None, AGENT, link=linked, CONVERSATION_ID=conversation))
        else:
            spans.append(span(above.trace_id, str(number), above.name, operation, CONVERSATION_ID=conversation))
    return spans


def is_tie(lost: SpanRow, spans: list[SpanRow]) -> bool:
    """Whether nothing but this span tells that its trace is a part of the run."""
    return lost.parent_span_id is None and lost.trace_id != A


@settings(max_examples=200, deadline=None)
@given(spans=runs(), lost=st.integers(0, 7), seed=st.integers(0, 2**32))
def test_a_run_that_lost_a_span_is_nowhere_complete(spans: list[SpanRow], lost: int, seed: int) -> None:
    [whole] = build_trajectories(spans)
    assert whole.incomplete == ""
    gone = spans[lost % len(spans)]
    below = [s for s in spans if (s.trace_id, s.parent_span_id) == (gone.trace_id, gone.span_id)]
    below += [s for s in spans if (gone.trace_id, gone.span_id) in {(link.trace_id, link.span_id) for link in s.links}]
    rest = [s for s in spans if s is not gone]
    built = build_trajectories(rest)
    assert build_trajectories(random.Random(seed).sample(rest, len(rest))) == built
    assert sum(len(one.calls) for one in built) == sum(s.attributes[semconv.OPERATION_NAME] == CALL for s in rest)
    if below and not is_tie(gone, spans):
        assert all(one.incomplete for one in built)
    elif below:  # of what it held together, what stands under it, and what that leads to
        apart = {s.span_id for s in below}
        led = set(below_of(gone, spans)) - {gone.trace_id}
        beside = {s.span_id for s in rest if s.trace_id in led}
        holding = [one for one in built if (apart | beside) & ids_of(one)]
        assert all(one.incomplete for one in holding)


def below_of(top: SpanRow, spans: list[SpanRow]) -> Iterator[str]:
    """The traces of what stands below a span, by parents and links."""
    keys = {(top.trace_id, top.span_id)}
    for one in spans:  # what is above comes first
        above = {(one.trace_id, one.parent_span_id), *((link.trace_id, link.span_id) for link in one.links)}
        if keys & above:
            keys.add((one.trace_id, one.span_id))
            yield one.trace_id


@st.composite
def served(draw: st.DrawFn) -> list[SpanRow]:
    """What a server did for one request: spans of nobody's run, and of agents in several conversations below them."""
    spans = [span(A, "0", operation=None)]
    for number in range(1, draw(st.integers(2, 8))):
        operation = draw(st.sampled_from([None, None, AGENT, AGENT, TOOL, CALL]))
        said = draw(st.sampled_from(["one", "two", None])) if operation else None
        spans.append(span(A, str(number), draw(st.sampled_from(spans)).name, operation, CONVERSATION_ID=said))
    return spans


@settings(max_examples=200, deadline=None)
@given(spans=served(), lost=st.integers(0, 7))
def test_what_stood_below_a_lost_span_is_nowhere_complete(spans: list[SpanRow], lost: int) -> None:
    assert {one.incomplete for one in build_trajectories(spans)} <= {""}
    gone = spans.pop(lost % len(spans))
    below = {gone.span_id}
    for one in spans:  # parents come first
        below |= {one.span_id} if one.parent_span_id in below else set()
    assert all(one.incomplete or not below & ids_of(one) for one in build_trajectories(spans))


def ids_of(trajectory: Trajectory) -> set[str]:
    calls = {placed.call.span_id for placed in trajectory.calls}
    return calls | {agent.id for agent in trajectory.agents} | {tool.id for tool in trajectory.tool_calls}


@settings(max_examples=12, deadline=None)
@given(spans=runs(), lost=st.sets(st.integers(0, 7), max_size=2), data=st.data())
def test_a_store_says_the_same_after_any_batches(
    tmp_path_factory: pytest.TempPathFactory, spans: list[SpanRow], lost: set[int], data: st.DataObject
) -> None:
    rest = [s for number, s in enumerate(spans) if number not in lost]
    shuffled = data.draw(st.permutations(rest))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(rest)), max_size=2)))
    with Store.open(DataDir(tmp_path_factory.mktemp("data")), create=True) as store:
        for start, end in itertools.pairwise([0, *cuts, len(rest)]):
            store.append(shuffled[start:end])
            expected = build_trajectories([normalised(span) for span in shuffled[:end]])
            assert store.trajectories() == expected
            listed = sorted((one.id, one.revision, one.incomplete) for one in store.summaries())
            assert listed == sorted((one.id, one.revision, one.incomplete) for one in expected)
            rows = store.sql("SELECT id, calls FROM trajectories ORDER BY id")[1]
            assert rows == sorted((one.id, len(one.calls)) for one in expected)
