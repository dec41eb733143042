"""Files of other systems are read as what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langsmith.schemas import Run as LangSmithRun
from openai.types.chat import ChatCompletion
from system_files import (
    CHILD,
    CODEX,
    COMPLETION,
    FLAT,
    NESTED,
    PHOENIX,
    ROOT,
    SESSION,
    SUB_AGENT,
    SWE,
    TIME,
    TOOL,
    event,
    line,
    lines,
    read,
    runs_of,
    spoken,
)

from arttrace.commands import cli
from arttrace.formats.imported_files import Imported, read_file
from arttrace.formats.sdks.tolerant import normalised
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Relation, Trajectory
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories


def said(run: Trajectory) -> list[tuple[list[str], str]]:
    """Of each call the roles that it was given, and what it answered."""
    return [
        ([message.role for message in placed.call.messages], placed.call.choices[0].message.text)
        for placed in run.calls
    ]


def rewards(found: Imported) -> dict[str, float]:
    return {record.name: record.value for record in found.records if isinstance(record, Reward)}


def test_swe_agent() -> None:
    found, [run] = read(json.dumps(SWE, indent=2).encode())
    assert found.kinds == {"swe-agent trajectories": 1}
    assert said(run) == [
        (["system", "user", "assistant", "user"], "Look."),
        (["system", "user", "assistant", "user", "assistant", "tool"], "Done."),
    ]
    assert [(tool.name, tool.result) for tool in run.tool_calls] == [("ls", "a.py")]
    assert (run.scenario, run.metadata["exit_status"], run.incomplete) == ("file/repo-1", "submitted", "")
    assert rewards(found) == {"resolved": 1.0}


def test_mini_swe_agent() -> None:
    usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    item = {
        "trajectory_format": "mini-swe-agent-1.1",
        "instance_id": "repo-2",
        "info": {"exit_status": "Submitted", "submission": "d", "config": {"model": {"model_name": "m"}}},
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "```bash\nls\n```", "extra": {"response": usage, "actions": []}},
            {"role": "user", "content": "<returncode>0</returncode>"},
            {"role": "exit", "content": "d"},
        ],
    }
    _, [run] = read(json.dumps(item).encode())
    [only] = run.calls
    assert (only.call.input_tokens, only.call.output_tokens, only.call.request_model) == (7, 2, "m")
    assert run.scenario == "file/repo-2"


def test_claude_code() -> None:
    found, [run] = read(lines(*SESSION))
    assert found.kinds == {"claude code sessions": 1}
    whole = ["user", "assistant", "tool", "tool"]
    assert said(run) == [
        (["user"], ""),
        (whole, "One and two."),
        ([*whole, "assistant", "user"], "As before."),
    ]
    assert [placed.relation for placed in run.calls] == [Relation.START, Relation.EXTENDS, Relation.EXTENDS]
    assert {tool.id: tool.result for tool in run.tool_calls} == {"t1": "one", "t2": "two"}
    assert (run.calls[0].call.input_tokens, run.calls[0].call.output_tokens) == (18, 2)
    assert (run.incomplete, run.unread) == ("", {})
    assert "/home/x" not in str(found.records)


def test_a_sub_agent_in_a_file_of_its_own_joins_its_session() -> None:
    records = [*read_file(lines(*SESSION), "one").records, *read_file(lines(*SUB_AGENT), "two").records]
    [run] = runs_of(records)
    assert len(run.agents) == 2
    assert run.incomplete == ""
    assert len(run.calls) == 4


def test_what_follows_an_edited_prompt_is_a_branch() -> None:
    edited = [
        line("e1", "u7", "user", "Otherwise.", 10),
        line("e2", "e1", "assistant", [{"type": "text", "text": "So."}], 11, answer="a4"),
    ]
    _, [run] = read(lines(*SESSION, *edited))
    assert said(run)[-1] == (["user", "assistant", "tool", "tool", "assistant", "user"], "So.")


def test_codex() -> None:
    found, [run] = read(lines(*CODEX))
    assert found.kinds == {"codex sessions": 1}
    assert said(run) == [
        (["system", "user"], ""),
        (["system", "user", "assistant", "tool"], "There is one."),
    ]
    first = run.calls[0].call
    assert (first.input_tokens, first.output_tokens, first.request_model) == (9, 4, "gpt-x")
    assert [(tool.name, tool.arguments, tool.result) for tool in run.tool_calls] == [("exec", '{"cmd":"ls"}', "a.py")]
    limits = event(3, "event_msg", type="token_count", info=None, rate_limits={"used_percent": 3})
    _, [limited] = read(lines(*CODEX[:-3], limits, *CODEX[-3:]))
    assert limited.calls[0].call.input_tokens == 9
    compacted = event(5, "compacted", message="Listed.", replacement_history=None)
    _, [run] = read(lines(*CODEX, compacted, spoken(6, "user", "More."), spoken(7, "assistant", "No.")))
    assert said(run)[-1] == (["system", "user", "user"], "No.")


def langsmith_run(id: str, kind: str, parent: str | None, at: int, **more: Any) -> dict[str, Any]:
    item = {
        "id": id, "trace_id": ROOT, "parent_run_id": parent, "run_type": kind, "name": more.pop("name", kind),
        "start_time": TIME.format(at), "end_time": TIME.format(at + 1), "dotted_order": "x", "error": None, **more,
    }  # fmt: skip
    LangSmithRun(**item)
    return item


def test_langsmith_with_messages_as_langchain_writes_them() -> None:
    asked = AIMessage("", tool_calls=[{"id": "t1", "name": "find", "args": {"q": "x"}}])
    history = [SystemMessage("You help."), HumanMessage("Where?"), asked, ToolMessage("there", tool_call_id="t1")]
    answer = LLMResult(generations=[[ChatGeneration(message=AIMessage("There."))]]).model_dump()
    answer["generations"][0][0]["message"] = dumpd(AIMessage("There."))
    runs = [
        langsmith_run(
            ROOT, "chain", None, 0, name="agent", inputs={"q": "Where?"}, outputs={"a": "There."}, tags=["prod"],
            session_name="project", feedback_stats={"helpful": {"n": 1, "avg": 0.5}},
        ),
        langsmith_run(TOOL, "tool", ROOT, 1, name="find", inputs={"input": "{}"}, outputs={"output": "there"}),
        langsmith_run(
            CHILD, "llm", ROOT, 3, inputs={"messages": [[dumpd(one) for one in history]]}, outputs=answer,
            extra={"metadata": {"ls_model_name": "gpt-x"}, "invocation_params": {"temperature": 0.5}}, prompt_tokens=5,
            completion_tokens=1,
        ),
    ]  # fmt: skip
    found, [run] = read(lines(*runs))
    assert said(run) == [(["system", "user", "assistant", "tool"], "There.")]
    assert (run.calls[0].call.request_model, run.calls[0].call.input_tokens) == ("gpt-x", 5)
    assert run.calls[0].call.messages[2].tool_calls[0].arguments == '{"q":"x"}'
    assert (run.tags, run.project, run.agents[0].name) == (("prod",), "project", "agent")
    assert rewards(found) == {"helpful": 0.5}


def test_langsmith_with_the_runs_below_in_the_run() -> None:
    """As `client.read_run(id, load_child_runs=True)` gives them."""
    below = langsmith_run(
        CHILD,
        "llm",
        TOOL,
        2,
        inputs={"messages": ASKED},
        outputs={"choices": [{"message": {**ASKED[0], "content": "yo"}}]},
    )
    step = langsmith_run(TOOL, "chain", ROOT, 1, name="step", child_runs=[below])
    root = langsmith_run(ROOT, "chain", None, 0, name="agent", inputs={}, outputs={}, child_runs=[step])
    found, [run] = read(lines(root))
    assert (found.spans, said(run), run.agents[0].name) == (3, [(["user"], "yo")], "agent")


@pytest.mark.parametrize(
    ("outputs", "answer"),
    [
        (
            {"output": {"choices": [{"message": {"role": "assistant", "content": "yo"}, "finish_reason": "length"}]}},
            "yo",
        ),
        (
            {
                "message": {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "yo"}],
                    "stop_reason": "max_tokens",
                }
            },
            "yo",
        ),
        ({"output": {"answer": 42}}, None),
    ],
)
def test_what_a_function_returned_to_langsmith_is_an_answer_or_unread(
    outputs: dict[str, Any], answer: str | None
) -> None:
    """Of `@traceable(run_type="llm")`; an object that is no answer was an empty one."""
    found, [run] = read(lines(langsmith_run(CHILD, "llm", None, 1, inputs={"messages": ASKED}, outputs=outputs)))
    choices = [(one.message.text, one.finish_reason) for one in run.calls[0].call.choices]
    assert choices == ([] if answer is None else [(answer, "length")])
    assert len(found.unread) == (answer is None)


def test_langsmith_in_bulk_with_openais_messages(tmp_path: Path) -> None:
    inputs = {"messages": [{"role": "user", "content": "hi"}], "model": "m"}
    outputs = {"choices": [{"message": {"role": "assistant", "content": "yo"}, "finish_reason": "stop"}]}
    row = {
        "id": CHILD, "trace_id": ROOT, "parent_run_id": None, "run_type": "llm", "name": "ChatOpenAI",
        "start_time": TIME.format(1), "inputs": json.dumps(inputs), "outputs": json.dumps(outputs),
    }  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "runs.parquet")
    _, [run] = read((tmp_path / "runs.parquet").read_bytes())
    assert said(run) == [(["user"], "yo")]


def test_a_call_without_a_message_is_counted_and_named() -> None:
    found, _ = read(lines(langsmith_run(CHILD, "llm", None, 1, inputs={"odd": 1}, outputs={"odd": 2})))
    assert sum(found.unread.values()) == 1
    assert "langsmith-export" in next(iter(found.unread))


# --- Braintrust, Phoenix --------------------------------------------------------------------------------------


ASKED = [{"role": "user", "content": "hi"}]
BEGUN: dict[str, dict[str, Any]] = {
    "langsmith": langsmith_run(
        CHILD, "llm", None, 1, inputs={"messages": ASKED}, outputs={"choices": [{"message": ASKED[0]}]}, end_time=None
    ),
    "braintrust": {
        "root_span_id": "r", "created": TIME.format(0), "project_id": "p", "id": "2", "span_id": "r", "input": ASKED,
        "output": [{"message": ASKED[0]}], "metrics": {"start": 1.77e9}, "span_attributes": {"type": "llm"},
    },
    "weave": {
        "id": CHILD, "trace_id": ROOT, "parent_id": None, "op_name": "openai.chat.completions.create",
        "started_at": TIME.format(0), "ended_at": None, "inputs": {"messages": ASKED},
        "output": {"choices": [{"message": ASKED[0]}]},
    },
    "langfuse": {
        "id": "0123456789abcdef", "traceId": "0123456789abcdef" * 2, "type": "GENERATION", "name": "ask",
        "startTime": TIME.format(0), "endTime": None, "input": ASKED, "output": ASKED[0],
    },
}  # fmt: skip


@pytest.mark.parametrize("system", BEGUN)
def test_a_call_that_is_not_answered_yet_is_in_progress(system: str) -> None:
    """It was exported while it went on, or never ended: without its answer the run is not complete."""
    item = BEGUN[system]
    _, [run] = read(lines(item))
    assert run.incomplete == ""
    _, [run] = read(lines({**item, "output": None} | ({"outputs": None} if "outputs" in item else {})))
    assert run.incomplete == "call in progress"


def test_braintrust() -> None:
    about = {"root_span_id": "r", "created": TIME.format(0), "project_id": "p"}
    spans: list[dict[str, Any]] = [
        {
            **about, "id": "1", "span_id": "r", "span_parents": None, "is_root": True, "input": "Where?",
            "output": "There.", "scores": {"Factuality": 0.75, "none": None}, "metrics": {"start": 1.77e9},
            "span_attributes": {"name": "agent", "type": "task"}, "tags": ["prod"], "metadata": {"k": 1},
        },
        {
            **about, "id": "2", "span_id": "c", "span_parents": ["r"], "input": [{"role": "user", "content": "Where?"}],
            "output": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "There."}}],
            "metrics": {"start": 1.77e9, "end": 1.77e9 + 1, "prompt_tokens": 4, "completion_tokens": 2},
            "span_attributes": {"name": "Chat Completion", "type": "llm"}, "metadata": {"model": "gpt-x"},
        },
    ]  # fmt: skip
    found, [run] = read(lines(*spans))
    assert said(run) == [(["user"], "There.")]
    assert (run.calls[0].call.request_model, run.calls[0].call.output_tokens, run.tags) == ("gpt-x", 2, ("prod",))
    assert rewards(found) == {"Factuality": 0.75}
    assert run.incomplete == ""


@pytest.mark.parametrize("form", ["flat", "nested", "dataframe"])
def test_phoenix(form: str, tmp_path: Path) -> None:
    context = {"trace_id": "ab" * 16, "span_id": "cd" * 8}
    answer = [{"message": {"role": "assistant", "content": "yo"}}]
    nested = {"model_name": "gpt-x", "input_messages": NESTED, "output_messages": answer}
    note = {"name": "right", "annotator_kind": "LLM", "result": {"score": 1.0, "explanation": "so"}}
    if form == "dataframe":
        row = {
            **PHOENIX, **{f"context.{name}": value for name, value in context.items()},
            "attributes.llm.input_messages": NESTED, "attributes.llm.output_messages": answer,
            "attributes.llm.model_name": "gpt-x", "attributes.llm.token_count.prompt": 3,
        }  # fmt: skip
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "spans.parquet")
        data = (tmp_path / "spans.parquet").read_bytes()
    else:
        attributes = FLAT if form == "flat" else {"llm": nested}
        data = json.dumps([{**PHOENIX, "context": context, "attributes": attributes, "annotations": [note]}]).encode()
    found, [run] = read(data)
    assert said(run) == [(["user"], "yo")]
    assert run.calls[0].call.request_model == "gpt-x"
    assert rewards(found) == ({} if form == "dataframe" else {"right": 1.0})


@pytest.mark.parametrize("file", ["phoenix_spans.json", "phoenix_frame.parquet"])
def test_what_phoenixs_own_client_exported(file: str) -> None:
    """As JSON of its REST API and as a dataframe: see data/make_phoenix.py."""
    found, runs = read((Path(__file__).parent / "data" / file).read_bytes())
    assert (found.kinds, found.refused, found.unread) == ({"phoenix spans": 10}, 0, {})
    assert sorted((run.entry_name or run.agents[0].name, len(run.calls), run.error is None) for run in runs) == [
        ("travel", 2, False),
        ("travel", 2, True),
    ]
    assert [(run.metadata, run.tags) for run in runs] == [({"plan": "free", "user_id": "ada"}, ("trip",))] * 2
    [good] = [run for run in runs if run.error is None]
    first, second = (placed.call for placed in good.calls)
    assert [message.role for message in second.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert [(one.name, one.arguments) for one in first.choices[0].message.tool_calls] == [
        ("look", '{"q": "x"}'),
        ("add", '{"a":1,"b":2}'),
    ]
    assert [(one.name, one.result) for one in good.tool_calls if one.result] == [("look", "found x"), ("add", "3")]
    for call in (first, second):
        assert (call.request_model, call.input_tokens, call.output_tokens) == ("gpt-4o-mini", 7, 5)
        assert call.tools, "what was offered"


def test_a_trace_that_phoenix_exported_in_both_forms_is_one_run_of_each() -> None:
    data = Path(__file__).parent / "data"
    records = [
        *read_file((data / "phoenix_spans.json").read_bytes(), "monday").records,
        *read_file((data / "phoenix_frame.parquet").read_bytes(), "tuesday").records,
    ]
    assert [(run.incomplete, len(run.calls)) for run in runs_of(records)] == [("", 2), ("", 2)]


def test_stored_completions_need_what_was_asked() -> None:
    ChatCompletion.model_validate(COMPLETION)
    asked = {"object": "list", "data": [{"id": "x-0", "role": "user", "content": "hi"}]}
    found, [run] = read(json.dumps({"object": "list", "data": [{**COMPLETION, "messages": asked}]}).encode())
    assert said(run) == [(["user"], "yo")]
    assert run.scenario == "file/t1"
    found, _ = read(lines({**COMPLETION, "messages": asked}, COMPLETION), refused=1)
    assert "line 2: a stored completion without what was asked" in found.reasons[0]


def test_results_of_a_batch() -> None:
    request = {
        "custom_id": "t1",
        "method": "POST",
        "body": {"model": "m", "messages": [{"role": "user", "content": "q"}]},
    }
    result = {"custom_id": "t1", "response": {"status_code": 200, "body": COMPLETION}, "error": None}
    _, [run] = read(lines({**result, "request": request}))
    assert (said(run), run.scenario) == ([(["user"], "yo")], "file/t1")
    found, _ = read(lines({**result, "request": request}, result), refused=1)
    assert "put the line of the input file under `request`" in found.reasons[0]


@pytest.mark.parametrize("where", ["llm_output", "message"])
def test_langsmith_counts_tokens_where_langchain_does(where: str) -> None:
    answer = LLMResult(generations=[[ChatGeneration(message=AIMessage("There."))]]).model_dump()
    usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    message = AIMessage("There.", usage_metadata=usage if where == "message" else None)
    answer["generations"][0][0]["message"] = dumpd(message)
    if where == "llm_output":
        answer["llm_output"] = {"token_usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    asked = {"messages": [[dumpd(HumanMessage("Where?"))]]}
    _, [run] = read(lines(langsmith_run(ROOT, "llm", None, 0, inputs=asked, outputs=answer)))
    assert (run.calls[0].call.input_tokens, run.calls[0].call.output_tokens) == (7, 2)


# --- ART, ATIF of other hands ---------------------------------------------------------------------------------


def test_art_parquet_logs(tmp_path: Path) -> None:
    shown = [
        {"role": "user", "content": "hi", "tool_calls": None, "tool_call_id": None, "trainable": False},
        {"role": "assistant", "content": "yo", "tool_calls": None, "tool_call_id": None, "trainable": True},
    ]
    rows = [
        {"group_index": 0, "reward": at / 2, "metrics": '{"acc": 1}', "metadata": '{"k": "v"}', "messages": shown}
        for at in range(2)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    found, runs = read((tmp_path / "x.parquet").read_bytes())
    assert [said(run) for run in runs] == [[(["user"], "yo")]] * 2
    assert {run.group for run in runs} == {"file group 0"}
    other = read_file((tmp_path / "x.parquet").read_bytes(), "0002")  # of the step after it
    assert {run.group for run in runs_of(other.records)} == {"0002 group 0"}
    assert sorted(one.value for one in found.records if isinstance(one, Reward)) == [0.0, 0.5]
    assert runs[0].metadata == {"k": "v", "metrics": {"acc": 1}}


def test_atif_of_another_agent() -> None:
    item = {
        "schema_version": "ATIF-v1.4", "session_id": "s",
        "agent": {"name": "terminus", "version": "2", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "Go.", "timestamp": TIME.format(1)},
            {
                "step_id": 2, "source": "agent", "message": "ls", "timestamp": TIME.format(2),
                "metrics": {"prompt_tokens": 4, "logprobs": [-0.5], "completion_token_ids": [7]},
                "observation": {"results": [{"content": "a.py"}]},
            },
            {"step_id": 3, "source": "agent", "message": "Done.", "timestamp": TIME.format(3)},
        ],
    }  # fmt: skip
    _, [run] = read(json.dumps(item).encode())
    assert said(run) == [(["user"], "ls"), (["user", "assistant", "user"], "Done.")]
    choice = run.calls[0].call.choices[0]
    assert (choice.token_ids, choice.logprobs, run.agents[0].name) == ((7,), (-0.5,), "terminus")


# --- files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [lines(*SESSION, *SUB_AGENT), lines(*CODEX), lines(SWE), json.dumps([SWE, SWE]).encode()],
    ids=["claude", "codex", "swe", "list"],
)
def test_a_file_imported_again_changes_nothing(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(data)
    seen = []
    for _ in range(2):
        done = CliRunner().invoke(cli, ["import", str(file), "--dir", str(tmp_path / "d")], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        with Store.open(DataDir(tmp_path / "d")) as store:
            seen.append(store.sql("SELECT (SELECT count(*) FROM span_records), (SELECT count(*) FROM rewards)")[1])
    assert seen[0] == seen[1]


def test_a_bad_line_is_named_and_the_others_are_read() -> None:
    found, runs = read(b"\n".join([lines(*CODEX[:4]), b'{"type": "response_item", ', lines(*CODEX[4:])]), refused=1)
    assert found.reasons[0].startswith("line 5: ")
    assert len(runs[0].calls) == 2


@pytest.mark.parametrize("session", [CODEX, SESSION], ids=["codex", "claude"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_session_with_a_line_that_cannot_be_read_is_not_complete(session: list[dict[str, Any]], place: str) -> None:
    at = {"first": 0, "middle": 5, "last": len(session)}[place]
    _, [run] = read(b"\n".join([lines(*session[:at]), b'{"type": "us', lines(*session[at:])]).strip(), refused=1)
    assert run.incomplete == "interrupted: 1 line of the session missing"
    _, [run] = read(lines(*session))
    assert run.incomplete == ""


def test_a_session_whose_lines_follow_one_that_is_not_there_is_not_complete() -> None:
    """Of a history that was cut nobody would know that it begins in the middle."""
    without_the_tools = [one for one in SESSION if one.get("uuid") != "u3"]
    _, [run] = read(lines(*without_the_tools))
    assert run.incomplete == "interrupted: 1 line of the session missing"
    cut = [line("v0", None, "user", "You look.", 5, isSidechain=True, agentId="ag"), SUB_AGENT[1]]
    records = [*read_file(lines(*SESSION), "one").records, *read_file(lines(*cut), "two").records]
    assert [run.incomplete for run in runs_of(records)] == ["interrupted: 1 line of the session missing"]


RUN_AND_CALL = {
    "langsmith": (
        {"run_type": "chain", "inputs": {}, "outputs": {"x": 1}, "start_time": "2026-01-01T00:00:00Z"},
        lambda own, above: {"id": own * 16, "trace_id": "a1" * 16, "parent_run_id": above and above * 16},
        lambda score: {"feedback": [{"key": "good", "score": score}]},
    ),
    "braintrust": (
        {"metrics": {"start": 1.77e9, "end": 1.77e9}, "output": "x"},
        lambda own, above: {"root_span_id": "a1" * 16, "span_id": own * 8, "span_parents": above and [above * 8]},
        lambda score: {"scores": {"good": score}},
    ),
    "weave": (
        {"op_name": "agent", "started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"},
        lambda own, above: {"trace_id": "a1" * 16, "id": own * 8, "parent_id": above and above * 8},
        lambda score: {
            "summary": {"weave": {"feedback": [{"id": f"f{score}", "feedback_type": "good", "payload": score}]}}
        },
    ),
    "phoenix": (
        {"span_kind": "AGENT", "start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:01Z"},
        lambda own, above: {
            "context": {"trace_id": "a1" * 16, "span_id": own * 8}, "parent_id": above and above * 8,
        },
        lambda score: {"annotations": [{"name": "good", "result": {"score": score}}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("system", RUN_AND_CALL)
def test_what_a_part_of_a_run_scored_is_not_the_run_s_score(system: str) -> None:
    """As of an observation of Langfuse's: it is that part's, and the run's own score counts for the run alone."""
    common, ids, scored = RUN_AND_CALL[system]
    rows = [{**common, **ids("a1", None), **scored(1.0)}, {**common, **ids("b2", "a1"), **scored(0.0)}]
    found = read_file(b"\n".join(json.dumps(row).encode() for row in rows), "source")
    given = [one for one in found.records if isinstance(one, Reward)]
    spans = {one.parent_span_id: one.span_id for one in found.records if isinstance(one, SpanRow)}
    assert [(one.value, one.agent_id) for one in given] == [(1.0, None), (0.0, spans[spans[None]])]
    [run] = build_trajectories([normalised(one) for one in found.records if isinstance(one, SpanRow)], given)
    assert trajectory_reward(run) == 1.0


def test_a_phoenix_span_without_an_end_is_in_progress_unless_it_has_its_answer() -> None:
    def row(own: str, above: str | None, **more: Any) -> dict[str, Any]:
        context = {"trace_id": "a1" * 16, "span_id": own * 8}
        start = {"start_time": "2026-01-01T00:00:00Z", "end_time": None}
        return {"span_kind": "AGENT", "context": context, "parent_id": above and above * 8, **start, **more}

    answered = {"attributes": {"output.value": "There."}}
    failed = {"status_code": "ERROR", "status_message": "slow"}
    open_run = read_file(lines(row("a1", None, **answered), row("b2", "a1")), "source")
    assert [run.incomplete for run in runs_of(open_run.records)] == ["agent in progress"]
    whole = read_file(lines(row("a1", None, **answered), row("b2", "a1", **failed)), "source")
    assert [run.incomplete for run in runs_of(whole.records)] == [""]
