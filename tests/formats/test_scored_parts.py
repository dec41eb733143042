"""Scores that other systems gave to a part of a run: they are the agent's that did it, and of the uppermost the run's.
What a scorer of Braintrust's did in the trace that it scored is no part of the run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arttrace.formats.imported_files import Imported, read_file
from arttrace.formats.sdks.tolerant import normalised
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories

TIME = "2026-11-22T22:01:0{}.000000+00:00"
TRACE, TOP, STEP, CALL = ("aaaaaaaa-0000-0000-0000-00000000000" + at for at in "1123")
ASKED, SAID = [{"role": "user", "content": "hi"}], [{"message": {"role": "assistant", "content": "yo"}}]


def read(*items: dict[str, Any]) -> tuple[Imported, Trajectory]:
    found = read_file("\n".join(map(json.dumps, items)).encode(), "x")
    spans = [normalised(one) for one in found.records if isinstance(one, SpanRow)]
    [run] = build_trajectories(spans, [one for one in found.records if isinstance(one, Reward)])
    return found, run


def langsmith(id: str, kind: str, parent: str | None, at: int, score: float) -> dict[str, Any]:
    return {
        "id": id, "trace_id": TRACE, "parent_run_id": parent, "run_type": kind, "name": kind,
        "start_time": TIME.format(at), "end_time": TIME.format(at + 1), "inputs": {"messages": ASKED},
        "outputs": {"choices": SAID}, "feedback_stats": {kind: {"n": 1, "avg": score}},
    }  # fmt: skip


def weave(id: str, kind: str, parent: str | None, at: int, score: float) -> dict[str, Any]:
    given = {"id": f"f{at}", "feedback_type": f"wandb.annotation.{kind}", "payload": {"value": score}}
    op = "openai.chat.completions.create" if kind == "llm" else kind
    return {
        "id": id, "trace_id": TRACE, "parent_id": parent, "op_name": op, "project_id": "p",
        "started_at": TIME.format(at), "ended_at": TIME.format(at + 1), "inputs": {"messages": ASKED},
        "output": {"choices": SAID} if kind == "llm" else None,
        "summary": {"weave": {"feedback": [given]}, "usage": {} if kind == "llm" else {"m": {"requests": 1}}},
    }  # fmt: skip


def braintrust(id: str, kind: str, parent: str | None, at: int, score: float | None, **marks: str) -> dict[str, Any]:
    return {
        "root_span_id": TRACE, "span_id": id, "id": id, "span_parents": [parent] if parent else None,
        "created": TIME.format(at), "metrics": {"start": 1.77e9 + at, "end": 1.77e9 + at + 1}, "input": ASKED,
        "output": SAID, "span_attributes": {"type": kind, "name": kind, **marks}, "scores": {kind: score},
    }  # fmt: skip


def observation(id: str, kind: str, parent: str | None, at: int) -> dict[str, Any]:
    kinds = {"chain": "AGENT", "step": "SPAN", "llm": "GENERATION"}
    return {
        "id": id, "type": kinds[kind], "name": kind, "parentObservationId": parent, "startTime": TIME.format(at),
        "endTime": TIME.format(at + 1), "input": ASKED, "output": SAID[0]["message"],
    }  # fmt: skip


PARTS = ((TOP, "chain", None, 0), (STEP, "step", TOP, 1), (CALL, "llm", STEP, 2))
SCORED = {
    "langsmith": [langsmith(*part, part[3] / 4) for part in PARTS],
    "weave": [weave(*part, part[3] / 4) for part in PARTS],
    "braintrust": [braintrust(*part, part[3] / 4) for part in PARTS],
    "langfuse": [
        {
            "id": "1" * 32,
            "observations": [observation(*part) for part in PARTS],
            "scores": [
                {"id": f"s{at}", "name": name, "value": at / 4, "observationId": id} for id, name, _, at in PARTS
            ],
        }
    ],
}


@pytest.mark.parametrize("system", SCORED)
def test_a_score_of_a_part_is_its_agents_and_of_the_uppermost_the_runs(system: str) -> None:
    _, run = read(*SCORED[system])
    [agent] = run.agents
    assert len(run.calls) == 1
    given = sorted((one.value, one.name, one.agent_id) for one in run.rewards)
    assert given == [(0.0, "chain", None), (0.25, "step", agent.id), (0.5, "llm", agent.id)]


ONLINE = [braintrust(TOP, "task", None, 0, None), braintrust(CALL, "llm", TOP, 1, None)]
BY_SCORERS = [
    braintrust("s", "score", TOP, 3, 0.5, purpose="scorer"),
    braintrust("j", "llm", "s", 4, None, purpose="scorer"),
]


def test_what_a_scorer_did_is_no_part_of_the_run_and_its_score_is_of_what_it_scored() -> None:
    found, run = read(*ONLINE, *BY_SCORERS)
    assert (len(run.calls), run.incomplete) == (1, "")
    assert [(one.name, one.value, one.agent_id) for one in run.rewards] == [("score", 0.5, None)]
    assert found.left_out == {"spans of scorers": 2}


def test_a_score_that_stands_in_both_counts_once_as_the_scored_span_has_it() -> None:
    corrected = {**ONLINE[0], "scores": {"score": 1.0}, "metrics": {"start": 1.77e9, "end": 1.77e9 + 9}}
    _, run = read(corrected, ONLINE[1], *BY_SCORERS)
    assert [(one.name, one.value, one.agent_id) for one in run.rewards] == [("score", 1.0, None)]


def test_that_a_scorers_span_has_no_mark_is_said() -> None:
    unmarked = [braintrust("s", "score", TOP, 3, 0.5), braintrust("j", "llm", "s", 4, None)]
    found, run = read(*ONLINE, *unmarked)
    assert len(run.calls) == 2
    assert [why.partition(",")[0] for why in found.left_out] == ["marks of scorers' spans"]
