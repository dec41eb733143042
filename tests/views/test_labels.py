"""What `arttrace show` says of branches, of what is in progress, and of calls that nobody answered."""

from __future__ import annotations

import json

import msgspec
import pytest
from rich.console import Console
from simulated_agent import Run, message, result

from arttrace.formats.imported_files import read_file
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories, sequences
from arttrace.views.labels import group_name, readable_json
from arttrace.views.terminal import trajectory_view


def shown(spans: list[SpanRow]) -> str:
    [trajectory] = build_trajectories(spans)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(trajectory_view(trajectory, *sequences(trajectory), None))
    return capture.get()


def test_branches_and_unanswered_tools_are_reported() -> None:
    run = Run()
    start = [message("system", "s"), message("user", "u")]
    run.chat("a", start, message("assistant", "x"), at=1)
    run.chat("b", start, message("assistant", calls=(("1", "look", "{}"),)), at=10)
    run.chat(
        "c", [message("system", "t"), message("user", "u"), message("assistant", "x")], message("assistant", "z"), at=20
    )
    text = shown(run.end())
    assert "branch regeneration: the same prompt\n" in text.replace(" \n", "\n").replace("  ", " ")
    assert "branch edit: 1 changed in place (system) (95% sure)" in text
    assert "tool look({}) not answered" in text


def test_what_is_in_progress_is_reported() -> None:
    run = Run()
    run.chat("a", [message("user", "u")], at=1, TOKEN_IDS=None, OUTPUT_MESSAGES=None)
    spans = [msgspec.structs.replace(span, end_ns=0) for span in run.end()]
    text = shown(spans)
    assert "incomplete: call in progress; run in progress" in text
    assert "call in progress [policy@1]" in text
    assert "agent planner  (in progress)" in text
    unnamed = [
        msgspec.structs.replace(
            span,
            attributes={k: v for k, v in span.attributes.items() if "model" not in k and "policy" not in k},
        )
        for span in spans
    ]
    assert "call in progress\n" in shown(unnamed).replace(" \n", "\n"), "no brackets around nothing"


def test_spans_set_aside_are_reported() -> None:
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1)
    spans = run.end()
    assert "1 set aside" in shown([*spans, msgspec.structs.replace(spans[0], name="chat other")])


def test_inferred_tools_and_links_that_are_less_than_sure_are_marked() -> None:
    run = Run()
    start = [message("user", "u")]
    asked = message("assistant", calls=(("1", "look", "{}"), ("2", "research", "{}")))
    run.chat("a", start, asked, at=1)
    run.tool("t", "look", at=7, until=9, TOOL_CALL_ID="1", TOOL_CALL_RESULT="page")
    run.chat("s", [message("user", "sub")], message("assistant", "it is in Oslo"), at=12)
    answered = [*start, asked, result("1", "page"), result("2", '{"result": "it is in Oslo"}')]
    run.chat("b", answered, message("assistant", "x"), at=20)
    text = shown(run.end())
    assert "── tool look({}) -> page" in text
    assert '── inferred tool research({}) -> {"result": "it is in Oslo"}' in text
    assert "agent research  (inferred: its answer is a part of what research returned, 90% sure)" in text


def test_a_tool_stands_before_the_answer_that_saw_its_result() -> None:
    """In an imported conversation a call begins where the one before it ended; of exchanges many begin at once."""
    history = [
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "page"},
        {"role": "assistant", "content": "the end"},
    ]
    conversation = json.dumps({"messages": history})
    exchanges = [
        {
            "request": {"model": "m", "messages": history[:at]},
            "response": {"created": 1_790_000_000, "choices": [{"message": history[at]}]},
        }
        for at in (1, 3)
    ]
    for document in (conversation, json.dumps(exchanges)):
        text = shown([r for r in read_file(document.encode(), "file").records if isinstance(r, SpanRow)])
        lines = [line for line in text.splitlines() if line.startswith(("├", "└"))]
        assert [line[4:].split()[0].rstrip(":") for line in lines] == ["user", "assistant", "inferred", "assistant"]
        assert "the end" in lines[-1]


@pytest.mark.parametrize("way", ["in a tool", "in a flow", "decorated"])
def test_sub_agents_stand_under_their_own_tool_calls_where_all_have_one_id(way: str) -> None:
    """As of a server that numbers the tool calls of each answer from 0."""
    run = Run()
    history = [message("user", "u")]
    for turn in range(3):
        at = 20 * turn + 1
        answer, arguments = f"answer number {turn}", json.dumps({"n": turn})
        asked = message("assistant", calls=(("call_0", "ask", arguments),))
        history.append(run.chat(f"m{turn}", history, asked, at=at, until=at + 1))
        parent, flow = None, "E0"
        if way == "in a tool":
            said = {"TOOL_CALL_ARGUMENTS": arguments, "TOOL_CALL_RESULT": answer}
            parent = run.tool(f"t{turn}", "ask", at=at + 2, until=at + 9, TOOL_CALL_ID="call_0", **said)
        elif way == "in a flow":
            flow = f"E{turn + 1}"
        else:
            parent = run.agent(f"helper{turn}", at=at + 2, until=at + 9, ENTRY_RESULT=json.dumps(answer))
        question = [message("user", f"question {turn}")]
        run.chat(
            f"s{turn}", question, message("assistant", answer), at=at + 3, until=at + 5, parent=parent, flow=flow,
            above="E0",
        )  # fmt: skip
        history.append(result("call_0", answer))
    run.chat("end", history, message("assistant", "done"), at=90)
    lines = shown(run.end(at=99)).splitlines()
    order = [next(n for n, line in enumerate(lines) if f'ask({{"n": {turn}}})' in line) for turn in range(3)]
    tools = [n for n, line in enumerate(lines) if "tool ask(" in line]
    questions = [n for n, line in enumerate(lines) if "user: question" in line]
    assert len(tools) == len(questions) == len([line for line in lines if "agent " in line]) - 1 == 3
    assert order == sorted(order)
    assert sorted(tools + questions) == [n for pair in zip(tools, questions, strict=True) for n in pair]


def test_redacted_tools_are_listed_once_and_their_calls_distinguished_from_cut_ones() -> None:
    run = Run()
    start = [message("user", "[redacted, 1 characters]")]
    asked = message("assistant", calls=(("1", "look", "[redacted, 9 characters]"),))
    run.chat("a", start, asked, at=1, MASKED=["gen_ai.input.messages"])
    run.tool("t", "look", at=7, until=9, TOOL_CALL_ARGUMENTS='{"q":"[redacted, 1 characters]"}', TOOL_CALL_RESULT="p")
    answered = [*start, asked, result("1", "[redacted, 4 characters]")]
    run.chat("b", answered, message("assistant", "x"), at=20, TRUNCATED=["gen_ai.input.messages"])
    text = shown(run.end(ENTRY_ARGUMENTS='{"q": "[redacted, 1 characters]"}'))
    assert text.count("tool look(") == 1
    assert "1 x redacted or masked, 1 x truncated" in " ".join(text.split())
    assert '{"q":"[redacted, 1 characters]"}' in text


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("agent:run null", ""),
        ('agent:run {"question":"Oslo?"}', "Oslo?"),
        ('agent:run {"city": "Oslo"}', "Oslo"),
        ('agent:run {"city":"Oslo","days":3}', "city=Oslo, days=3"),
        ('agent:run {"city": "Oslo", "days": 3}', "city=Oslo, days=3"),
        ("agent:run [1]", "[1]"),
        ("free text", "free text"),
        ("agent:run #0123456789abcdef", "#0123456789abcdef"),
        ("airline-7", "airline-7"),
    ],
)
def test_a_group_is_named_readably(key: str, name: str) -> None:
    assert group_name(key, "agent:run") == name


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ('shop.agent:answer {"question":"why?"}', "why?"),
        ('/A/shop/agent.py:answer {"question":"why?"}', "why?"),
        ('agent:answer {"city":"Oslo","days":3}', "city=Oslo, days=3"),
        ("shop.agent:answer #0123456789abcdef", "#0123456789abcdef"),
        ("task: 7 of 9", "task: 7 of 9"),
        ("shop:seven 7", "shop:seven 7"),
        ('say {"this":1}', 'say {"this":1}'),
    ],
)
def test_a_group_of_several_entries_is_named_alike_for_all(key: str, name: str) -> None:
    assert group_name(key, "agent.py:other") == name


def test_a_group_whose_name_begins_as_its_entry_does_keeps_it() -> None:
    assert group_name("swe-agent_trajectories/repo-1", "swe-agent") == "swe-agent_trajectories/repo-1"
    assert group_name("agent:runs 3", "agent:run") == "agent:runs 3"


@pytest.mark.parametrize(
    "text", ["Łódź 你好 🧪", "a\u202eb", 'tab\t, \\\\u0141 and "quotes"', "\ud83e alone", "\x7f\x80\x00", ""]
)
def test_letters_stand_in_the_place_of_their_escapes_and_the_value_is_the_same(text: str) -> None:
    shown = readable_json(json.dumps({"x": text}))
    assert json.loads(shown) == {"x": text}
    assert shown.isprintable()
    assert all(letter in shown for letter in text if letter > "\x7f" and letter.isprintable())
