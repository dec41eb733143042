"""Some servers give one id to a tool call of each answer, or to several of one: each is read with its own result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arttrace.formats.imported_files import read_file
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories


def asked(*calls: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in calls]
    return {"role": "assistant", "content": blocks}


def given(*results: tuple[str, str, bool]) -> dict[str, Any]:
    blocks = [
        {"type": "tool_result", "tool_use_id": id, "content": said, **({"is_error": True} if failed else {})}
        for id, said, failed in results
    ]
    return {"role": "user", "content": blocks}


LOOP = [
    {"role": "user", "content": "Look."},
    asked(("c1", "look", {"q": 1})),
    given(("c1", "boom", True)),
    asked(("c1", "look", {"q": 2})),
    given(("c1", "bang", True)),
    asked(("c1", "look", {"q": 3})),
    given(("c1", "fine", False)),
    {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
]
USAGE = {"input_tokens": 1, "output_tokens": 1}


def conversation() -> list[dict[str, Any]]:
    return [{"messages": LOOP}]


def training_row() -> list[dict[str, Any]]:
    return [{"prompt": LOOP[:1], "completion": LOOP[1:]}]


def pairs() -> list[dict[str, Any]]:
    return [
        {
            "request": {"model": "m", "messages": LOOP[:at], "max_tokens": 9},
            "response": {"id": f"m{at}", "type": "message", "model": "m", "usage": USAGE, **LOOP[at]},
        }
        for at in range(1, len(LOOP), 2)
    ]


def session() -> list[dict[str, Any]]:
    return [
        {
            "type": message["role"],
            "uuid": f"u{at}",
            "parentUuid": f"u{at - 1}" if at else None,
            "sessionId": "s",
            "timestamp": f"2026-01-01T00:00:0{at}Z",
            "message": message | ({"id": f"m{at}", "model": "m", "usage": USAGE} if at % 2 else {}),
        }
        for at, message in enumerate(LOOP)
    ]


def read(lines: list[dict[str, Any]]) -> Trajectory:
    records: list[Record] = read_file("\n".join(map(json.dumps, lines)).encode(), "file").records
    spans = [record for record in records if isinstance(record, SpanRow)]
    [run] = build_trajectories(spans, [record for record in records if isinstance(record, Reward)])
    return run


@pytest.mark.parametrize("form", [conversation, training_row, pairs, session])
def test_each_answer_has_the_result_of_its_own_tool_call(form: Any) -> None:
    run = read(form())
    assert run.incomplete == ""
    assert [(json.loads(call.arguments), call.result, call.error) for call in run.tool_calls] == [
        ({"q": 1}, "boom", "boom"),
        ({"q": 2}, "bang", "bang"),
        ({"q": 3}, "fine", None),
    ]


def test_calls_of_one_answer_under_one_id_have_the_results_in_their_order() -> None:
    messages = [
        LOOP[0],
        asked(("c1", "look", {"q": 1}), ("c1", "add", {"a": 2})),
        given(("c1", "boom", True), ("c1", "3", False)),
        LOOP[-1],
    ]
    run = read([{"messages": messages}])
    assert run.incomplete == ""
    assert sorted((call.name, call.arguments, call.result, call.error) for call in run.tool_calls) == [
        ("add", '{"a":2}', "3", None),
        ("look", '{"q":1}', "boom", "boom"),
    ]


@pytest.mark.parametrize("order", [("zz", "c1"), ("c1", "zz"), ("zz", "yy")])
def test_a_result_of_an_unknown_id_answers_the_call_that_no_other_result_names(order: tuple[str, str]) -> None:
    messages = [
        LOOP[0],
        asked(("c1", "look", {"q": 1}), ("c2", "add", {"a": 2})),
        given(*((id, f"under {id}", False) for id in order)),
        LOOP[-1],
    ]
    run = read([{"messages": messages}])
    of_look, of_add = order if order[0] == "c1" or "c1" not in order else order[::-1]
    assert [(call.name, call.result) for call in run.tool_calls] == [
        ("look", f"under {of_look}"),
        ("add", f"under {of_add}"),
    ]
