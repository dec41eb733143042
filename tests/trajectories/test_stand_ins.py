"""Which runs lack a span that was refused, and when they do not any more."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from arttrace.records import semconv
from arttrace.records.span import SpanLink, SpanRow
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.identity.stand_ins import is_stand_in, stand_in

TRACE = "ab" * 16


def span(id: int, operation: str | None, parent: int | None = None, *, end: int = 9, **said: Any) -> SpanRow:
    attributes = {semconv.OPERATION_NAME: operation} if operation else {}
    above = f"{parent:016x}" if parent is not None else None
    return SpanRow(TRACE, f"{id:016x}", "it", id, end, parent_span_id=above, attributes=attributes | said)


def refused(
    id: int | None, parent: int | None = None, why: str = "too large", trajectory_id: str | None = None, **more: Any
) -> SpanRow:
    above = f"{parent:016x}" if parent is not None else None
    found = stand_in(
        why,
        **{
            "trace_id": TRACE,
            "span_id": None if id is None else f"{id:016x}",
            "parent_span_id": above,
            "name": "it",
            "attributes": {semconv.TRAJECTORY_ID: trajectory_id},
            **more,
        },
    )
    assert found is not None
    return found


def incomplete(*spans: SpanRow) -> dict[str, str]:
    """By run; the same in every order."""
    found = [{one.id: one.incomplete for one in build_trajectories(order)} for order in itertools.permutations(spans)]
    assert all(one == found[0] for one in found)
    return found[0]


RUN = (span(1, "invoke_agent"), span(2, "chat", 1))
SAID = "a span was refused: too large"


def test_a_run_lacks_what_was_refused_until_it_comes() -> None:
    assert incomplete(*RUN) == {TRACE: ""}
    assert incomplete(*RUN, refused(3, 1)) == {TRACE: SAID}
    assert incomplete(*RUN, refused(3, 1), refused(3, 1)) == {TRACE: SAID}
    assert incomplete(*RUN, refused(3, 1), span(3, "chat", 1)) == {TRACE: ""}
    assert incomplete(*RUN, refused(3, 1), span(3, "chat", 1, end=0)) == {TRACE: f"{SAID}; call in progress"}
    assert incomplete(*RUN, refused(None, 1)) == {TRACE: SAID}


def test_its_revision_says_so_too() -> None:
    whole, lacking = (build_trajectories(spans)[0] for spans in (RUN, (*RUN, refused(3, 1))))
    assert whole.revision != lacking.revision
    assert [one.call.span_id for one in whole.calls] == [one.call.span_id for one in lacking.calls]
    assert lacking.conflicts == 0


def test_several_reasons_are_counted_and_bounded() -> None:
    several = [refused(10 + n, 1, f"reason {n}") for n in range(5)]
    [one] = build_trajectories([*RUN, *several, *(refused(20 + n, 1, "reason 0") for n in range(2))])
    assert one.incomplete == (
        "3 spans were refused: reason 0; a span was refused: reason 1; a span was refused: reason 2; "
        "spans refused for other reasons: 2"
    )


TWO = (
    span(1, "invoke_agent", **{semconv.TRAJECTORY_ID: "one"}),
    span(2, "invoke_agent", **{semconv.TRAJECTORY_ID: "two"}),
)


@pytest.mark.parametrize(
    ("missed", "lacking"),
    [
        (refused(3, 1), {"one"}),
        (refused(3, 2), {"two"}),
        (refused(3, trajectory_id="two"), {"two"}),
        (refused(3, 1, trajectory_id="two"), {"two"}),
        (refused(3, trajectory_id="three"), set()),
        (refused(3), {"one", "two"}),
        (refused(3, 7), {"one", "two"}),
        (refused(3, 3), {"one", "two"}),
        (refused(3, trace_id="cd" * 16), set()),
        (refused(3, trace_id="cd" * 16, trajectory_id="one"), {"one"}),
    ],
)
def test_the_run_that_it_named_or_that_its_parent_is_of_lacks_it(missed: SpanRow, lacking: set[str]) -> None:
    assert incomplete(*TWO, missed) == {id: SAID if id in lacking else "" for id in ("one", "two")}


def test_what_stands_under_another_that_was_refused_is_of_its_run() -> None:
    found = incomplete(*TWO, refused(4, 3, "deep"), refused(3, 2))
    assert found == {"one": "", "two": "a span was refused: deep; a span was refused: too large"}
    assert set(incomplete(*TWO, refused(4, 3), refused(3, 4))) == {"one", "two"}  # each other's parents


def test_what_stands_under_another_that_named_its_run_is_of_that_run() -> None:
    found = incomplete(*TWO, refused(4, 3, "deep"), refused(3, 1, trajectory_id="two"))
    assert found == {"one": "", "two": "a span was refused: deep; a span was refused: too large"}


def test_it_stands_above_nothing() -> None:
    """What was refused is missed above its children as what never came is."""
    [run] = incomplete(span(2, "chat", 1), refused(1)).values()
    assert run == f"{SAID}; root missing"


def test_it_is_no_run_and_part_of_none() -> None:
    assert incomplete(refused(3)) == {}
    assert incomplete(refused(3, 1), span(1, None)) == {}


@pytest.mark.parametrize("trace_id", [None, "", "0" * 32, "zz" * 16, "ab", 5, "ab" * 16 + "\n"])
def test_there_is_none_without_a_trace(trace_id: Any) -> None:
    assert stand_in("why", trace_id=trace_id) is None


def test_whatever_was_read_of_a_span_it_is_small_and_valid() -> None:
    made = stand_in(
        "\ud800" * 5000,
        trace_id=TRACE.upper(),
        span_id=7,
        parent_span_id="0" * 16,
        name="\ud800" * 5000,
        start_ns=1 << 80,
        attributes={semconv.TRAJECTORY_ID: "x" * 5000, "more": "x" * 5000},
        links=[(f"{n:032x}", f"{n:016x}") for n in range(500)],
    )
    assert made is not None
    assert is_stand_in(made)
    assert (made.trace_id, made.parent_span_id, made.start_ns, len(made.span_id)) == (TRACE, None, 1, 16)
    assert (len(made.name), len(made.status_message)) == (100, 200)
    assert len(made.links) == 64
    assert made.attributes == {semconv.OPERATION_NAME: semconv.OPERATION_REFUSED}


OTHER = "cd" * 16


def linking(id: int, to: int, parent: int | None = None, trace: str = TRACE) -> SpanRow:
    """What stands in for an agent in a trace of its own that links to another's."""
    return refused(id, parent, trace_id=OTHER, links=[(trace, f"{to:016x}")])


def in_other(span: SpanRow) -> SpanRow:
    return msgspec.structs.replace(span, trace_id=OTHER)


@pytest.mark.parametrize(
    ("missed", "lacking"),
    [
        (linking(3, 1), {"one"}),
        (linking(3, 2), {"two"}),
        (linking(3, 9), {"one", "two"}),  # to what did not come
        (linking(3, 1, trace="ef" * 16), set()),
        (refused(3, trace_id=OTHER, links=[(TRACE, f"{1:016x}"), (TRACE, f"{2:016x}")]), {"one", "two"}),
        (refused(3, trace_id=OTHER, links=[(TRACE, f"{1:016x}")], trajectory_id="two"), {"two"}),
        (refused(3, trace_id=OTHER, links=[("zz", "1"), (5, None), (TRACE.upper(), f"{1:016x}")]), {"one"}),
    ],
)
def test_the_run_that_a_refused_agent_linked_to_lacks_it(missed: SpanRow, lacking: set[str]) -> None:
    assert incomplete(*TWO, missed) == {id: SAID if id in lacking else "" for id in ("one", "two")}


def test_a_link_of_a_refused_agent_counts_where_its_parent_did_not_come() -> None:
    """As that of one which came."""
    agents = in_other(span(5, "invoke_agent")), in_other(span(6, "invoke_agent", 5))
    assert incomplete(*RUN, agents[0], linking(7, 1, 5)) == {TRACE: "", OTHER: SAID}
    assert incomplete(*RUN, agents[0], linking(7, 1, 4)) == {TRACE: SAID, OTHER: SAID}
    torn = f"{SAID}; root missing"
    assert incomplete(*RUN, agents[1], linking(5, 1)) == {TRACE: SAID, OTHER: torn}  # it stood above the one that came
    below = in_other(refused(7, 5, "deep"))
    assert incomplete(*RUN, linking(5, 1), below) == {TRACE: f"a span was refused: deep; {SAID}"}


def test_agents_that_were_refused_and_stand_in_a_ring_are_lacked_where_one_linked_to() -> None:
    linked = linking(5, 1, 6)
    ring = linked, in_other(refused(6, 5)), in_other(refused(7, 6))
    assert incomplete(*RUN, *ring) == {TRACE: "3 spans were refused: too large"}


def test_the_run_that_a_refused_agent_linked_to_is_whole_when_it_comes() -> None:
    link = [SpanLink(TRACE, f"{1:016x}")]
    agent = msgspec.structs.replace(in_other(span(5, "invoke_agent")), links=link)
    assert incomplete(*RUN, linking(5, 1), agent) == {TRACE: ""}


@pytest.mark.parametrize("to", [9, 1], ids=["to what did not come", "to the run"])
@pytest.mark.parametrize("in_both", [{"one"}, {"one", "two"}])
def test_what_several_ties_lead_to_one_run_counts_once(to: int, in_both: set[str]) -> None:
    """The runs have parts in both traces, so that the refused one's own trace and its link lead to each."""
    numbers = {"one": 1, "two": 2}
    parts = [in_other(span(20 + numbers[id], "chat", **{semconv.TRAJECTORY_ID: id})) for id in sorted(in_both)]
    missed = [linking(3, to), refused(4)]
    both = "2 spans were refused: too large"
    assert incomplete(*TWO, *parts, *missed) == {id: both if id in in_both or to == 9 else SAID for id in numbers}
