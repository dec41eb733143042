"""What a file says and no record holds is counted and reported; lines of newer versions cost no run its other lines."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from system_files import CODEX, ROOT, SESSION, SWE, TIME, event, line, lines, read, spoken

from arttrace.commands import cli
from arttrace.formats.files.items import ItemFile
from arttrace.formats.imported_run import ImportedRun
from arttrace.records.message import ToolResultPart
from arttrace.trajectories import advice

ASKED = [{"role": "user", "content": "hi"}]
CALL = {
    "id": ROOT, "trace_id": ROOT, "run_type": "llm", "name": "m", "start_time": TIME.format(1),
    "inputs": {"messages": ASKED}, "outputs": {"content": "yo", "role": "assistant"},
}  # fmt: skip
SPAN = {
    "root_span_id": "r", "span_id": "r", "span_parents": None, "created": TIME.format(0), "input": ASKED,
    "output": "yo", "span_attributes": {"name": "m", "type": "llm"},
}  # fmt: skip
WEAVES_CALL = {
    "id": ROOT, "trace_id": ROOT, "parent_id": None, "op_name": "openai.chat.completions.create",
    "started_at": TIME.format(0), "ended_at": TIME.format(1), "inputs": {"messages": ASKED},
    "output": {"choices": [{"message": {"role": "assistant", "content": "yo"}}]},
    "summary": {"weave": {"feedback": [{"id": "f", "feedback_type": "tone", "payload": {"value": "kind"}}]}},
}  # fmt: skip
PHOENIX_SPAN = {
    "name": "m", "span_kind": "LLM", "context": {"trace_id": "ab" * 16, "span_id": "cd" * 8},
    "start_time": TIME.format(0), "attributes": {},
}  # fmt: skip
ATIF = {
    "schema_version": "ATIF-v1.7", "agent": {"name": "a", "version": "1"}, "extra": {"trial": 3},
    "final_metrics": {"total_cost_usd": 0.5},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Go."},
        {
            "step_id": 2, "source": "agent", "message": "Ask.",
            "tool_calls": [{"tool_call_id": "c", "function_name": "ask", "arguments": {}}],
            "observation": {"results": [{
                "source_call_id": "c", "content": "Done.",
                "subagent_trajectory_ref": [{"trajectory_id": "other", "trajectory_path": "sub.json"}],
            }]},
        },
    ],
}  # fmt: skip
ART = {
    "trajectories": [
        {"messages_and_choices": [*ASKED, {"message": {"role": "assistant", "content": "yo"}, "finish_reason": "stop"}]}
    ],
    "exceptions": [{}, {}],
}


@pytest.mark.parametrize(
    ("item", "left_out"),
    [
        (
            {**CALL, "feedback": [{"key": "tone", "value": "kind"}], "feedback_stats": {"seen": {"n": 1, "avg": None}}},
            {"feedback without a score": 2},
        ),
        ({**SPAN, "scores": {"tone": "kind", "not given": None}}, {"scores that are no numbers": 1}),
        (WEAVES_CALL, {"feedback without a clear number": 1}),
        (
            {**PHOENIX_SPAN, "annotations": [{"name": "tone", "result": {"label": "kind"}}]},
            {"annotations without a score": 1},
        ),
        (ATIF, {"sub-agents in other files": 1}),
        (
            {
                **ATIF,
                "steps": [ATIF["steps"][0], {"step_id": 2, "source": "agent", "message": "Gone."}],
                "continued_trajectory_ref": "trajectory.cont-1.json",
            },
            {"continuations in other files": 1},
        ),
        (ART, {"rollouts that failed": 2}),
        ({**SWE, "reward": "good"}, {"rewards that are no numbers": 1}),
        (
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "reward": 10**400},
            {"rewards that are no finite numbers": 1},
        ),
        (
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "reward": "0.5"},
            {"rewards that are no numbers": 1},
        ),
        (
            {"prompt": ASKED, "completion": [{"role": "assistant", "content": "a"}], "score": "0.5", "reward": None},
            {"rewards that are no numbers": 1},
        ),
        ({"messages": ASKED, "response": "yo"}, {"conversations without an answer": 1}),
    ],
    ids=[
        "langsmith",
        "braintrust",
        "weave",
        "phoenix",
        "atif",
        "atif goes on",
        "art",
        "swe-agent",
        "conversation",
        "reward as text",
        "training row",
        "no answer",
    ],
)
def test_what_no_record_holds_is_counted(item: dict[str, Any], left_out: dict[str, int]) -> None:
    found, runs = read(lines(item))
    assert found.left_out == left_out
    assert len(runs) == 1


def test_an_atif_run_whose_other_parts_are_in_other_files_is_incomplete() -> None:
    alone, asks = ATIF["steps"]
    [result] = asks["observation"]["results"]
    by_path = [{"session_id": "s", "trajectory_path": f"sub-{at}.json"} for at in (1, 2)]  # before version 1.7
    twice = {**asks, "observation": {"results": [{**result, "subagent_trajectory_ref": by_path}]}}
    documents: list[dict[str, Any]] = [
        {**ATIF, "steps": [alone, {"step_id": 2, "source": "agent", "message": "Gone."}]},
        {**ATIF, "continued_trajectory_ref": "trajectory.cont-1.json"},
        {**ATIF, "steps": [alone, twice]},
        {**ATIF, "subagent_trajectories": [{**ATIF, "trajectory_id": "other", "steps": [alone]}]},
    ]
    found, runs = read(lines(*documents))
    assert sorted(run.incomplete for run in runs) == [
        "",
        "",
        "interrupted: 1 sub-agent and its continuation in other files",
        "interrupted: 2 sub-agents in other files",
    ]
    assert found.left_out == {"sub-agents in other files": 3, "continuations in other files": 1}
    [advised] = advice.on_incomplete(max(run.incomplete for run in runs))
    assert "does not join files" in advised


def test_it_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(lines(ART, {**ART, "exceptions": [{}]}))
    done = CliRunner().invoke(cli, ["import", str(file), "--dir", str(tmp_path / "data")])
    assert done.exit_code == 0, "nothing was refused"
    assert "  left out: rollouts that failed (3)\n" in done.stderr
    shown = CliRunner().invoke(cli, ["import", str(file), "--json", "--dir", str(tmp_path / "data")])
    assert json.loads(shown.stdout)[0]["left_out"] == {"rollouts that failed": 3}


def test_what_another_agents_atif_says_beside_its_steps_is_kept() -> None:
    _, [run] = read(lines(ATIF))
    assert run.metadata == {"agent_version": "1", "final_metrics": {"total_cost_usd": 0.5}, "extra": {"trial": 3}}


def test_lines_of_newer_claude_code_are_no_faults() -> None:
    """Titles, modes and links stand between what was said, and have neither a uuid nor a parent."""
    books = [
        {"type": "permission-mode", "permissionMode": "plan", "sessionId": "s-1"},
        {"type": "ai-title", "aiTitle": "Reading", "sessionId": "s-1"},
        {"type": "pr-link", "prNumber": 4, "sessionId": "s-1"},
    ]
    beside = {"sessionId": "s-1", "timestamp": TIME.format(1)}
    tree = [
        {"type": "attachment", "attachment": {"type": "file"}, "uuid": "n1", "parentUuid": "u9", **beside},
        {"type": "system", "subtype": "compact_boundary", "uuid": "n2", "parentUuid": "n1", **beside},
        {"type": "of tomorrow", "uuid": "n3", "parentUuid": "n2", **beside},
        line("n4", "n3", "user", "And now?", 10),
        line("n5", "n4", "assistant", [{"type": "text", "text": "As ever."}], 11, answer="a9"),
    ]
    found, [run] = read(lines(*books, *SESSION, *tree))
    assert found.left_out == {"attachments": 1, "lines of type of tomorrow": 1}
    last = run.calls[-1].call
    assert [message.role for message in last.messages][-3:] == ["user", "assistant", "user"], "its place in the tree"
    nowhere = [{**SESSION[-1], "uuid": None}, {**SESSION[-1], "message": "words"}]
    found, _ = read(lines(*SESSION, *nowhere), refused=2)
    assert found.reasons[0].startswith("line 12: a line of type assistant has a sessionId, a uuid and a message")


def test_what_codex_let_the_service_do_is_kept_and_the_rest_counted() -> None:
    search = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "oslo"}}
    more = [
        event(5, "response_item", **search),
        event(5, "response_item", type="tool_search_output", call_id="t1", tools=["a"]),
        event(5, "response_item", type="compaction", encrypted_content="x"),
        event(5, "response_item", type="ghost_snapshot", ghost_commit={}),
        event(5, "token_usage_record", total=3),
        event(5, "some_new_line", text="hi"),
        event(6, "response_item", role="user", content=[{"type": "input_text", "text": "More."}]),
        spoken(7, "assistant", "No."),
    ]
    found, [run] = read(lines(*CODEX, *more))
    assert found.left_out == {"lines of type some_new_line": 1}
    said = run.calls[-2].call.choices[0].message
    assert search in [getattr(part, "value", None) for part in said.parts]
    last = run.calls[-1].call
    assert [message.role for message in last.messages][-4:] == ["assistant", "tool", "user", "user"]
    assert [part.value["type"] for part in last.messages[-2].parts] == ["compaction"], "data sets leave it out"
    assert last.messages[-1].text == "More."


def test_an_image_that_a_tool_of_codex_gave_is_kept() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    given = [
        event(5, "response_item", type="function_call", name="look", arguments="{}", call_id="c9"),
        event(5, "response_item", type="function_call_output", call_id="c9", output=[image]),
        spoken(6, "assistant", "A cat."),
    ]
    _, [run] = read(lines(*CODEX, *given))
    [result] = run.calls[-1].call.messages[-1].parts
    assert isinstance(result, ToolResultPart)
    assert result.response == [image]


TALK = {"messages": [{"role": "user", "content": "Où?"}, {"role": "assistant", "content": "Là."}], "reward": 1}


@pytest.mark.parametrize(
    "row",
    [
        {"conversation": TALK["messages"]},
        {"trajectory": TALK["messages"]},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
        {"prompt": ASKED, "completion": [{"role": "assistant", "content": "yo"}]},
    ],
)
def test_a_row_with_a_type_and_a_session_is_no_line_of_claude_code(row: dict[str, Any]) -> None:
    found, runs = read(lines(TALK, {"type": "chat", "sessionId": "s1", **row}))
    assert (len(runs), found.refused, found.left_out) == (2, 0, {})


def test_scores_of_langfuse_of_which_only_the_id_is_reported_are_counted() -> None:
    seen = {"id": "o", "startTime": TIME.format(1), "type": "SPAN"}
    found, _ = read(lines({"id": "t", "observations": [seen], "scores": ["score-1", "score-2"]}))
    assert found.left_out == {"scores with nothing but an id": 2}


def test_bytes_that_are_no_utf8_are_counted() -> None:
    """A file in Latin-1 loses its accents: that is reported."""
    text = json.dumps(TALK, ensure_ascii=False)
    found, _ = read((text + "\n" + text.replace("Là", "�")).encode("latin-1", errors="ignore"))
    assert found.left_out == {"bytes that are no UTF-8, read as U+FFFD": 3}
    found, _ = read((text + "\n" + text.replace("Là", "�")).encode())
    assert found.left_out == {}, "a replacement character that the file holds is none"


def test_bytes_that_are_no_utf8_are_counted_in_little_memory() -> None:
    """A file that is no text at all is looked at too, before that is known."""
    data = b"\n" + b"\xff\xc3\xa4\xc3" * (1 << 20)
    tracemalloc.start()
    try:
        found = ItemFile(io.BytesIO(data), len(data))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.replaced == (2 << 20) - 1, "the last may go on"
    assert most < 16 * len(data)


def test_files_put_together_and_json_within_json_are_read() -> None:
    text = json.dumps(TALK)
    marked = b"".join(b"\xef\xbb\xbf" + text.replace("Là", word).encode() + b"\r\n" for word in ("a", "b"))
    found, runs = read(marked)
    assert (found.kinds, len(runs)) == ({"conversations": 2}, 2)
    found, runs = read(lines(text, text.replace('"reward": 1', '"reward": 0')))
    assert (found.kinds, len(runs)) == ({"conversations": 2}, 2)


def test_what_is_there_twice_word_for_word_is_two_runs() -> None:
    """Rollouts of one task often say the same: a group without them has another mean."""
    found, runs = read(lines(TALK, TALK, {**TALK, "reward": 0}))
    assert (len(runs), found.traces, found.spans, found.rewards) == (3, 3, 6, 3)
    again, _ = read(lines(TALK, TALK, {**TALK, "reward": 0}))
    assert again.records == found.records, "imported again, it is there once"


def test_a_reward_that_is_not_finite_is_counted() -> None:
    text = json.dumps(TALK)
    found, _ = read("\n".join(text.replace('"reward": 1', f'"reward": {one}') for one in ("NaN", "Infinity")).encode())
    assert (found.rewards, found.left_out) == (0, {"rewards that are no finite numbers": 2})


DEEP = "values of metadata nested deeper than 256 levels"


def nested(levels: int) -> Any:
    found: Any = "end"
    for _ in range(levels - 1):
        found = [found]
    return found


def with_metadata(form: str, metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """A run of a form with this metadata."""
    if form == "conversation":
        return [{"messages": [*ASKED, {"role": "assistant", "content": "yo"}], "metadata": metadata}]
    if form == "otlp":
        attributes = {"gen_ai.operation.name": "invoke_agent", "arttrace.metadata": json.dumps(metadata)}
    elif form == "openinference":
        attributes = {"openinference.span.kind": "AGENT", "metadata": json.dumps(metadata)}
    else:
        [run] = ART["trajectories"]
        return [{**run, "metadata": metadata}]
    said = [{"key": name, "value": {"stringValue": value}} for name, value in attributes.items()]
    times = {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    span = {"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "run", "attributes": said, **times}
    return [{"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}]


@pytest.mark.parametrize("form", ["conversation", "otlp", "openinference", "art"])
def test_of_metadata_what_is_too_deep_is_counted_and_the_rest_read(form: str) -> None:
    """All of it was lost. The limit is that of every value that is read out of a text."""
    levels = 255
    found, [run] = read(lines(*with_metadata(form, {"plan": nested(levels), "shop": "bern"})))
    assert (run.metadata, found.left_out) == ({"plan": nested(levels), "shop": "bern"}, {})
    for levels in (256, 300, 900):
        deep = {"plan": nested(levels), "shop": "bern", "other": nested(levels)}
        found, [run] = read(lines(*with_metadata(form, deep)))
        assert (run.metadata, found.left_out) == ({"shop": "bern"}, {DEEP: 2}), levels


def test_metadata_that_cannot_be_written_is_no_run_without_it() -> None:
    run = ImportedRun("file", "key")
    with pytest.raises(ValueError, match="metadata is nested too deep"):
        run.end(metadata={"plan": nested(20_000)})
