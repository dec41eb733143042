"""What docs/frameworks.md claims of each framework, tried in an environment of its own (environments.py)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import bedrock_server
import pytest
from collector_process import collecting
from gemini_server import answer_of, serve_gemini
from own_environment import kept_in
from scripted_server import Asked, Call, Reply, serve_script
from spool import finished_spans

from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "frameworks.md"
spec = importlib.util.spec_from_file_location("framework_environments", HERE / "environments.py")
assert spec is not None
assert spec.loader is not None
environments: Any = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = environments
spec.loader.exec_module(environments)


def claimed() -> dict[str, dict[str, bool]]:
    """The table of the docs, by title."""
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in TABLE.read_text().splitlines()
        if "|" in line
    ]
    return {
        title: {column: mark == "yes" for column, mark in zip(environments.COLUMNS, marks, strict=True)}
        for title, _, *marks in rows[2:]
    }


def test_the_table_names_what_is_tried() -> None:
    assert claimed().keys() == {framework.title for framework in environments.FRAMEWORKS.values()}


@pytest.mark.full
@pytest.mark.parametrize("name", environments.FRAMEWORKS)
def test_a_framework_as_the_table_has_it(name: str, tmp_path: Path) -> None:
    folder = kept_in(tmp_path / "environments")
    tried = environments.try_out(environments.FRAMEWORKS[name], folder, tmp_path / "data")
    assert tried.row == claimed()[tried.framework.title]
    assert "42" in tried.printed


def run_twice(
    framework: Any, program: str, tmp_path: Path, settings: Mapping[str, str]
) -> tuple[list[Any], Trajectory]:
    """What a program returned bare and as a trajectory (twice.py) in its framework's environment, and that run."""
    folder = kept_in(tmp_path / "environments")
    python = environments.environment(framework, folder)
    ours = {"PYTHONPATH": str(HERE.parents[1]), "ARTTRACE_DIR": str(tmp_path / "d"), "ARTTRACE_RAISE": "1"}
    command = [str(python), str(HERE / "twice.py"), program]
    done = subprocess.run(command, env={**os.environ, **ours, **settings}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-6000:]
    (run,) = build_trajectories(finished_spans(tmp_path / "d"))
    returned: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return returned, run


@pytest.mark.full
@pytest.mark.parametrize("exported", ["", "SPAN_ONLY"], ids=["no content", "content on spans"])
@pytest.mark.parametrize("schema", ["1", "2"])
def test_google_adk_tells_its_own_calls(schema: str, exported: str, tmp_path: Path) -> None:
    """Behind a client without a hook, whatever ADK was asked to export."""
    settings = {
        "ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN": schema,
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": exported,
    }
    returned, run = run_twice(environments.FRAMEWORKS["google_adk"], "gemini_google_adk", tmp_path, settings)
    assert returned == ["It is 42."] * 2
    names = {agent.id: agent.name for agent in run.agents}
    assert sorted(names[placed.agent_id] for placed in run.calls) == ["boss", "boss", "helper", "helper"]
    assert run.incomplete == ""
    assert run.unread == {}
    said = [[message.role for message in placed.call.messages] for placed in run.calls]
    assert sorted(map(len, said)) == [2, 2, 4, 4]
    assert all(placed.call.choices[0].message.parts for placed in run.calls)
    ran = {tool.name: (tool.arguments, tool.result, tool.inferred) for tool in run.tool_calls}
    assert ran["double"] == ('{"number":21}', '{"result":"42"}', False)


def desk_answers() -> Iterator[dict[str, Any]]:
    """What the boss and the helper are answered, in the order in which they ask."""
    yield answer_of({"functionCall": {"name": "helper", "args": {"request": "Double 21"}}})
    yield answer_of({"functionCall": {"name": "double", "args": {"number": 21}}})
    yield answer_of({"text": "It is 42."})
    yield answer_of({"text": "It is 42."})


@pytest.mark.full
@pytest.mark.parametrize("schema", ["1", "2"])
def test_the_calls_of_google_adk_by_googles_client_are_recorded_once(schema: str, tmp_path: Path) -> None:
    """ADK makes spans of them too, and gives tool calls ids that it does not send."""
    with serve_gemini() as server:
        server.answers += [*desk_answers(), *desk_answers()]
        settings = {
            "ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN": schema,
            "GEMINI_URL": server.url,
            "GOOGLE_API_KEY": "AIza-secret-0123456789",
        }
        returned, run = run_twice(environments.FRAMEWORKS["google_adk"], "google_genai_google_adk", tmp_path, settings)
    assert returned == ["It is 42."] * 2
    names = {agent.id: agent.name for agent in run.agents}
    assert sorted(names[placed.agent_id] for placed in run.calls) == ["boss", "boss", "helper", "helper"]
    assert (run.incomplete, run.unread) == ("", {})
    assert sorted(len(placed.call.messages) for placed in run.calls) == [2, 2, 4, 4]
    ran = {tool.name: (tool.result, tool.inferred) for tool in run.tool_calls if tool.name == "double"}
    assert ran == {"double": ('{"result":"42"}', False)}


@pytest.mark.full
@pytest.mark.parametrize(
    "settings",
    [
        {"ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN": "1", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"},
        {
            "ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN": "1",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "EVENT_ONLY",
        },
        {
            "ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN": "2",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "EVENT_ONLY",
        },
    ],
    ids=["schema 1", "schema 1, newer conventions", "schema 2"],
)
def test_google_adk_sends_messages_in_log_records(settings: dict[str, str], tmp_path: Path) -> None:
    """By OpenTelemetry's exporters to the collector, without arttrace in the process."""
    folder = kept_in(tmp_path / "environments")
    python = environments.environment(environments.FRAMEWORKS["google_adk"], folder)
    data = DataDir(tmp_path / "d")
    with collecting(data) as (_, url):
        env = {**os.environ, **settings, "ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS": "false"}
        env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        command = [str(python), str(HERE / "exported.py"), "gemini_google_adk"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout) == (0, "It is 42.\n"), done.stderr[-6000:]
    with Store.open(data) as store:
        (run,) = store.trajectories()
    assert (run.incomplete, run.unread, len(run.calls)) == ("", {}, 4)
    assert sorted(len(placed.call.messages) for placed in run.calls) == [2, 2, 4, 4]
    assert all(placed.call.choices[0].message.parts for placed in run.calls)


def reacting(asked: Asked) -> Reply:
    """A model that doubles, searches and finishes, in the fields of DSPy's prompts."""
    instructions, so_far = (str(asked.request["messages"][at]["content"]) for at in (0, -1))
    if "next_tool_name" not in instructions:
        fields = {"reasoning": "It was doubled.", "answer": "It is 42."}
    else:
        steps = [("double", '{"number": 21}'), ("search", '{"text": "42"}'), ("finish", "{}")]
        name, given = steps[so_far.count("## observation_")]
        fields = {"next_thought": "Go on.", "next_tool_name": name, "next_tool_args": given}
    return Reply("\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()))


@pytest.mark.full
def test_the_tools_of_dspy_s_react_are_recorded(tmp_path: Path) -> None:
    with serve_script(reacting) as server:
        dspy = environments.Framework("DSPy", ("dspy",), "dspy")
        returned, run = run_twice(dspy, "react_dspy", tmp_path, settings_of(server, tmp_path))
    assert returned == [["It is 42.", "It is 42."]] * 2
    assert (run.incomplete, len(run.calls)) == ("", 8)
    ran = [(tool.name, tool.arguments, tool.result, tool.error, tool.inferred) for tool in run.tool_calls]
    assert ran == 2 * [
        ("double", '{"number":21}', "42", None, False),
        ("search", '{"text":"42"}', None, "LookupError: nothing about 42", False),
        ("finish", "{}", "Completed.", None, False),
    ]


@pytest.mark.full
def test_what_dspy_asks_by_its_own_engine_is_recorded(tmp_path: Path) -> None:
    """And what it asks by LiteLLM under its own name: each call once, those that failed too, and a stream left early;
    routes lead them elsewhere."""
    order = ("whole", "awaited", "streamed", "again", "again")

    def answering(asked: Asked) -> Reply:
        if "streamed" in asked.users[-1]:
            (policy if asked.request["model"] == "policy:latest" else server).failures.append(500)  # the next one
        early = "early" in asked.users[-1]  # more than is read at once
        return Reply("word " * 5000 if early else "[[ ## answer ## ]]\nYes\n\n[[ ## completed ## ]]")

    with serve_script(answering) as server, serve_script(answering) as policy:
        settings = {"HOME": str(tmp_path), "MODEL_URL": server.url, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        unset = {"OPENAI_BASE_URL": "", "OPENAI_API_BASE": "", "OPENAI_API_KEY": ""}
        framework = environments.Framework("DSPy", ("dspy",), "dspy")
        returned, run = run_twice(framework, "own_engine_dspy", tmp_path, settings | unset)
        sent = server.sent[len(server.sent) // 2 :]
        bodies = [[one.json for one in half] for half in (server.sent[: len(sent)], sent)]
        server.sent.clear()
        route = {"ARTTRACE_ROUTE": f"gpt-4o=policy:latest@{policy.url}"}
        run_twice(framework, "own_engine_dspy", tmp_path / "again", settings | unset | route)
        assert [len(policy.sent), len(server.sent)] == [len(sent)] * 2, "the bare run asks the server"
    assert returned[0] == returned[1]
    assert bodies[0] == bodies[1]
    assert (run.incomplete, run.unread) == ("", {})
    assert len(run.calls) == len(sent) == 4 * len(order) + 1
    for placed, one in zip(run.calls, sent, strict=True):
        content = (one.json.get("messages") or one.json["input"])[-1]["content"]
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        assert placed.call.messages[-1].text == "".join(texts)
    failed = [bool(placed.call.error) for placed in run.calls]
    assert failed == [*([False] * 3 + [True, False]) * 4, False]
    assert [placed.call.interrupted for placed in run.calls] == [None] * 20 + ["closed"]


def settings_of(server: Any, home: Path) -> dict[str, str]:
    """What a program's openai client, or LiteLLM, needs to ask a server."""
    return {
        "HOME": str(home),
        "OPENAI_API_KEY": "sk-test-0123456789",
        "OPENAI_API_BASE": server.url,
        "OPENAI_BASE_URL": server.url,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "AGNO_TELEMETRY": "false",
    }


def agents_of_calls(run: Trajectory) -> list[tuple[str, str]]:
    """The agent of each call, with the agent that it stands below."""
    names = {agent.id: agent.name for agent in run.agents}
    above = {agent.id: names.get(agent.parent_id or "", "") for agent in run.agents}
    return [(names[placed.agent_id], above[placed.agent_id]) for placed in run.calls]


@pytest.mark.full
def test_a_run_of_agno_that_is_continued_is_of_its_agent(tmp_path: Path) -> None:
    def erasing(asked: Asked) -> Reply:
        if asked.results:
            return Reply("Done.")
        if "erase" in asked.tools:
            return Reply(calls=(Call("erase", {"number": 21}),))
        return Reply(calls=(Call("delegate_task_to_member", {"member_id": "eraser", "task": "Erase 21"}),))

    with serve_script(erasing) as server:
        framework = environments.FRAMEWORKS["agno"]
        returned, run = run_twice(framework, "continued_agno", tmp_path, settings_of(server, tmp_path))
    assert returned == [["Done."] * 5] * 2
    assert (run.incomplete, len(run.calls)) == ("", 12)
    assert Counter(agents_of_calls(run)) == {("eraser", "main"): 8, ("eraser", "desk"): 2, ("desk", "main"): 2}
    names = {agent.id: agent.name for agent in run.agents}
    erased = [names[tool.agent_id] for tool in run.tool_calls if tool.result == "21 erased"]
    assert erased == ["eraser"] * 5


@pytest.mark.full
def test_what_llamaindex_asks_behind_an_agents_steps_is_of_the_agent(tmp_path: Path) -> None:
    def doubling(asked: Asked) -> Reply:
        if "Number" in asked.tools or "response_format" in asked.request:
            return Reply('{"number": 42}', calls=(Call("Number", {"number": 42}),) if asked.tools else ())
        if asked.tools and (not asked.results or "stopper" in asked.system):
            return Reply(calls=(Call("double", {"number": 21}, f"call_{len(asked.results)}"),))
        return Reply("It is 42.")

    with serve_script(doubling) as server:
        framework = environments.FRAMEWORKS["llamaindex"]
        returned, run = run_twice(framework, "asked_again_llamaindex", tmp_path, settings_of(server, tmp_path))
    assert returned[0] == returned[1] == ["{'number': 42}", "It is 42."]
    assert (run.incomplete, len(run.calls)) == ("", 6)
    assert Counter(agents_of_calls(run)) == {("former", "main"): 3, ("stopper", "main"): 3}


KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.mark.full
def test_the_calls_of_strands_by_boto3_are_recorded_once(tmp_path: Path) -> None:
    """Strands makes spans of them too."""

    def asks(name: str, given: dict[str, Any]) -> dict[str, Any]:
        called = {"toolUse": {"toolUseId": name, "name": name, "input": given}}
        return bedrock_server.answer_of(called, reason="tool_use")

    done = bedrock_server.answer_of({"text": "It is 42."})
    with bedrock_server.serve_bedrock() as server:
        server.answers += 2 * [asks("ask_helper", {"task": "Double 21"}), asks("double", {"number": 21}), done, done]
        settings = KEYS | {"BEDROCK_URL": server.url}
        returned, run = run_twice(environments.FRAMEWORKS["strands"], "bedrock_strands", tmp_path, settings)
    assert returned == ["It is 42."] * 2
    names = {agent.id: agent.name for agent in run.agents}
    assert sorted(names[placed.agent_id] for placed in run.calls) == ["boss", "boss", "helper", "helper"]
    assert (run.incomplete, run.unread) == ("", {})
    assert sorted(len(placed.call.messages) for placed in run.calls) == [2, 2, 4, 4]
    ran = {tool.name: (tool.result, tool.inferred) for tool in run.tool_calls}
    assert ran == {"ask_helper": ("It is 42.", False), "double": ("42", False)}


@pytest.mark.full
def test_the_calls_of_aiobotocore_are_recorded(tmp_path: Path) -> None:
    with bedrock_server.serve_bedrock() as server:
        server.refused = "refused"
        aiobotocore = environments.Framework("aiobotocore", ("aiobotocore",), "aiobotocore")
        settings = KEYS | {"BEDROCK_URL": server.url}
        (bare, captured), run = run_twice(aiobotocore, "bedrock_aiobotocore", tmp_path, settings)
    assert captured == bare
    assert (run.incomplete, run.unread) == ("", {})
    found = [(placed.call.request_model, bool(placed.call.choices), placed.call.error) for placed in run.calls]
    answered = [("nova-x", True, None)] * 2 + [("openai.gpt-oss", True, None)] * 2
    assert [(model, said, error and error.partition(":")[0]) for model, said, error in found] == [
        *answered, ("refused", False, "400"),
    ]  # fmt: skip
    assert all(placed.call.output_tokens == 4 for placed in run.calls[:4])
