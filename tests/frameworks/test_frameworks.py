"""Agent frameworks on top of the openai client, the real packages, with no code for any of them in the program.

Each program runs twice against a scripted server in one process: bare, then as a trajectory. What the program gets and
what the server gets is the same, and every call is recorded once, as it was on the wire.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Asked, Call, Reply, Script, ScriptedServer, Sent, serve_script
from spool import finished_spans

from arttrace.records import semconv
from arttrace.records.message import TextPart
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

HERE = Path(__file__).parent


@dataclass
class Runs:
    """What one program did: the results and requests of its bare and of its captured run, and the captured spans."""

    bare: list[str]
    captured: list[str]
    bare_sent: list[Sent]
    captured_sent: list[Sent]
    spans: list[SpanRow]

    def named(self, operation: str) -> list[SpanRow]:
        return [span for span in self.spans if span.attributes[semconv.OPERATION_NAME] == operation]

    @property
    def calls(self) -> list[SpanRow]:
        return sorted(self.named(semconv.OPERATION_CHAT), key=lambda span: span.start_ns)

    @property
    def callers(self) -> list[str]:
        """The name of the agent right above each call."""
        names = {span.span_id: span.attributes.get(semconv.AGENT_NAME) for span in self.spans}
        return [str(names[call.parent_span_id or ""]) for call in self.calls]

    @property
    def tools(self) -> list[tuple[str, str, str]]:
        """Name, call id and result of each tool run in the captured run."""
        return [
            (
                span.attributes[semconv.TOOL_NAME],
                span.attributes.get(semconv.TOOL_CALL_ID, ""),
                span.attributes.get(semconv.TOOL_CALL_RESULT, ""),
            )
            for span in sorted(self.named(semconv.OPERATION_EXECUTE_TOOL), key=lambda span: span.start_ns)
        ]


def environment(server: ScriptedServer, data: Path, **more: str) -> dict[str, str]:
    """What a program is started with: where the server is, and nothing that calls home."""
    return {
        **os.environ,
        "OPENAI_API_KEY": "sk-test-0123456789",
        "OPENAI_BASE_URL": server.url,
        "OPENAI_API_BASE": server.url,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
        "ARTTRACE_DIR": str(data),
        "ARTTRACE_RAISE": "1",
        **more,
    }


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out.splitlines()[-1]


def run_twice(program: str, script: Script, data: Path, **more: str) -> Runs:
    with serve_script(script) as server:
        command = [sys.executable, str(HERE / "twice.py"), program]
        env = environment(server, data, **more)
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return runs_of(finish(process), server, data)


def run_each_twice(modules: list[str], cases: list[tuple[str, Script, dict[str, str]]], data: Path) -> list[Runs]:
    """Programs with more in their environment, each in a fork of one process that has imported what takes them long."""
    with ExitStack() as stack:
        servers = [stack.enter_context(serve_script(script)) for _, script, _ in cases]
        folders = [data / str(number) for number in range(len(cases))]
        asked = [
            [program, environment(server, folder, **more)]
            for (program, _, more), server, folder in zip(cases, servers, folders, strict=True)
        ]
        command = [sys.executable, str(HERE / "twice.py"), "--each", *modules]
        done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
        return [runs_of(*each) for each in zip(lines, servers, folders, strict=True)]


def runs_of(printed: str, server: ScriptedServer, data: Path) -> Runs:
    bare, captured = json.loads(printed)
    half = len(server.sent) // 2
    assert len(server.sent) == 2 * half > 0
    return Runs(bare, captured, server.sent[:half], server.sent[half:], finished_spans(data))


def texts(attribute: Any) -> list[str]:
    """Every text, tool call and tool result of the messages but the system's, in order."""
    out = []
    for message in json.loads(attribute) if isinstance(attribute, str) else attribute:
        if message["role"] in ("system", "developer"):
            continue
        for part in message["parts"]:
            if part["type"] == "tool_call":
                arguments = part["arguments"]
                out.append(f"{part['name']} {arguments if isinstance(arguments, str) else json.dumps(arguments)}")
            else:
                out.append(str(part.get("content", part.get("response"))))
    return out


def wire_texts(request: dict[str, Any]) -> list[str]:
    """The same of a request body of either API."""
    out = []
    items = request.get("messages") or request["input"]
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        if item.get("role") in ("system", "developer"):
            continue
        if item.get("type") == "function_call":
            out.append(f"{item['name']} {item['arguments']}")
            continue
        content = item.get("content", item.get("output"))
        out += [part["text"] for part in content] if isinstance(content, list) else [content] if content else []
        out += [f"{c['function']['name']} {c['function']['arguments']}" for c in item.get("tool_calls") or ()]
    return out


def check(runs: Runs) -> None:
    """What holds for every framework."""
    assert runs.captured == runs.bare
    bodies = [Counter(sent.body for sent in half) for half in (runs.bare_sent, runs.captured_sent)]
    assert bodies[0] == bodies[1], "the wire is unchanged"
    names = [sorted({*sent.headers}) for sent in (*runs.bare_sent, *runs.captured_sent)]
    assert names[0] == names[len(names) // 2]
    roots = [span for span in runs.spans if semconv.ENTRY in span.attributes]
    assert len(roots) == 1
    (root,) = roots
    assert {span.attributes[semconv.TRAJECTORY_ID] for span in runs.spans} == {root.attributes[semconv.TRAJECTORY_ID]}
    assert root.attributes[semconv.TRAJECTORY_SPAN_COUNT] == len(runs.spans) - 1
    wire = Counter(tuple(wire_texts(sent.json)) for sent in runs.captured_sent)
    captured = Counter(tuple(texts(call.attributes[semconv.INPUT_MESSAGES])) for call in runs.calls)
    assert captured == wire, "every call once, as it was on the wire"
    for call in runs.calls:
        assert call.attributes[semconv.OUTPUT_MESSAGES]
        assert semconv.REQUEST_STREAM in call.attributes or call.attributes[semconv.USAGE_INPUT_TOKENS] == 3
        assert call.attributes[semconv.REQUEST_MODEL] == "gpt-4o"


def order_desk(asked: Asked) -> Reply:
    """The front desk hands over; the specialist uses its tool, then answers."""
    if asked.system.startswith("You dispatch."):
        return Reply(calls=(Call("transfer_to_refunds", {}, "call_handoff"),))
    if "refunded" not in " ".join(asked.results):
        order = int(asked.users[0].split()[-1])
        return Reply(calls=(Call("refund", {"order": order}, f"call_{order}"),))
    return Reply("Done, " + asked.results[-1])


def erasing(asked: Asked) -> Reply:
    """The ids are those of each answer anew, as some servers count."""
    if asked.results:
        return Reply("; ".join(asked.results))
    numbers = [int(word) for word in asked.users[0].split() if word.isdigit()]
    return Reply(calls=tuple(Call("erase", {"number": n}, f"call_{at}") for at, n in enumerate(numbers)))


def erased(runs: Runs) -> list[tuple[str, str, str | None, bool]]:
    """The tool calls of a program whose runs wait for a yes: id, arguments, result, inferred."""
    check(runs)
    (trajectory,) = build_trajectories(runs.spans)
    assert len(trajectory.calls) == 4
    assert {agent.name for agent in trajectory.agents} == {"main", "eraser"}
    return [(t.id, t.arguments.replace(" ", ""), t.result, t.inferred) for t in trajectory.tool_calls]


@pytest.fixture(scope="module")
def of_openai_agents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    apis = ("responses", "chat")
    cases: list[tuple[str, Script, dict[str, str]]] = [("openai_agents", order_desk, {"API": api}) for api in apis]
    cases.append(("approved_openai_agents", erasing, {}))
    names = (*apis, "approved")
    return dict(zip(names, run_each_twice(["agents"], cases, tmp_path_factory.mktemp("agents")), strict=True))


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_openai_agents_sdk(api: str, of_openai_agents: dict[str, Runs]) -> None:
    runs = of_openai_agents[api]
    check(runs)
    assert runs.bare[:2] == ["Done, refunded 3", "Refunds"]
    assert len(runs.calls) == 6
    handoff = ("transfer_to_refunds", "call_handoff", '"{\\"assistant\\": \\"Refunds\\"}"')
    assert runs.tools == [handoff, ("refund", "call_3", '"refunded 3"'), handoff, ("refund", "call_4", '"refunded 4"')]
    (trajectory,) = build_trajectories(runs.spans)
    by_name = {agent.id: agent.name for agent in trajectory.agents}
    seen = [(by_name[tool.agent_id], tool.name, tool.result, tool.inferred) for tool in trajectory.tool_calls]
    assert seen[:2] == [
        ("Front desk", "transfer_to_refunds", '{"assistant": "Refunds"}', False),
        ("Refunds", "refund", "refunded 3", False),
    ]
    assert Counter(runs.callers) == {"Front desk": 2, "Refunds": 4}, "the handed-over agent makes its own calls"
    agents = runs.named(semconv.OPERATION_INVOKE_AGENT)
    names = Counter(span.attributes[semconv.AGENT_NAME] for span in agents)
    assert names == {"main": 1, "Front desk": 2, "Refunds": 2}
    (root,) = [span for span in agents if span.parent_span_id is None]
    assert all(span.parent_span_id in (None, root.span_id) for span in agents)


def test_a_tool_call_of_openai_agents_that_waits_for_a_yes_is_one(of_openai_agents: dict[str, Runs]) -> None:
    assert erased(of_openai_agents["approved"]) == [
        ("call_0", '{"number":3}', "3 erased", False),
        ("call_1", '{"number":4}', "4 erased", False),
        ("call_0", '{"number":5}', "no", True),
    ]


def writing(asked: Asked) -> Reply:
    if asked.system.startswith("You review."):
        return Reply("Fine: " + asked.users[-1])
    if not asked.results:
        return Reply(calls=(Call("look_up", {"word": "tea"}, "call_tea"), Call("look_up", {"word": "pot"}, "call_pot")))
    return Reply(" and ".join(asked.results))


@pytest.fixture(scope="module")
def of_langgraph(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    """Of the agent, of the agent whose graphs are streamed, of steps, and of runs that wait for a yes."""
    cases: list[tuple[str, Script, dict[str, str]]] = [
        ("langgraph_agent", writing, {}),
        ("langgraph_agent", writing, {"STREAM": "1"}),
        ("langgraph_steps", lambda asked: Reply(asked.system.removeprefix("You ")), {}),
        ("approved_langgraph", erasing, {}),
    ]
    runs = run_each_twice(["langchain_openai", "langgraph.prebuilt"], cases, tmp_path_factory.mktemp("langgraph"))
    return dict(zip(("agent", "streamed", "steps", "approved"), runs, strict=True))


def test_langgraph(of_langgraph: dict[str, Runs]) -> None:
    runs = of_langgraph["agent"]
    check(runs)
    assert len(runs.calls) == 4
    assert sorted(runs.tools, reverse=True) == [
        ("look_up", "call_tea", '"tea is a word"'),
        ("look_up", "call_pot", '"pot is a word"'),
    ]
    assert runs.callers == ["writer", "writer", "reviewer", "reviewer"]
    *_, first, second = runs.calls
    assert first.attributes[semconv.INPUT_MESSAGES] == second.attributes[semconv.INPUT_MESSAGES]
    assert first.attributes[semconv.EXECUTION_ID] != second.attributes[semconv.EXECUTION_ID], "distinguished"
    assert first.parent_span_id != second.parent_span_id


def test_langgraph_streamed(of_langgraph: dict[str, Runs]) -> None:
    runs = of_langgraph["streamed"]
    check(runs)
    assert Counter(runs.callers) == {"writer": 6, "reviewer": 4}
    agents = runs.named(semconv.OPERATION_INVOKE_AGENT)
    assert Counter(span.attributes[semconv.AGENT_NAME] for span in agents) == {
        "main": 1,
        "work": 3,
        "writer": 3,
        "reviewer": 4,
    }
    left = [span for span in agents if span.attributes.get(semconv.INTERRUPTED) == "closed"]
    assert [span.attributes[semconv.AGENT_NAME] for span in left] == ["work"], "whoever left early"


def weather(asked: Asked) -> Reply:
    city = asked.users[0].split()[-1]
    if not asked.results:
        return Reply(calls=(Call("weather", {"city": city}, f"call_{city}"),))
    return Reply(calls=(Call("final_result", {"name": city, "degrees": int(asked.results[0])}, f"call_end_{city}"),))


def test_a_step_that_langgraph_runs_alone_is_its_graphs_own_however_the_graph_is_run(
    of_langgraph: dict[str, Runs],
) -> None:
    runs = of_langgraph["steps"]
    check(runs)
    (trajectory,) = build_trajectories(runs.spans)
    declared = {agent.id: agent.name for agent in trajectory.agents if not agent.inferred}
    of = {agent.id: agent for agent in trajectory.agents}
    steps: dict[str, dict[str, str]] = {}
    for call in trajectory.calls:
        agent = of[call.agent_id]
        graph = declared.get(agent.id) or declared[agent.parent_id or ""]
        answer = call.call.choices[0].message.text.strip()
        steps.setdefault(graph, {})[answer] = agent.id if agent.inferred else agent.name
    assert len(steps) == 6
    for graph, agents in steps.items():
        assert (agents["plan."], agents["join."]) == (graph, graph), "the same agent in each way"
        assert len({*agents.values()}) == 3, "those that ran at once are apart"


def test_a_tool_call_that_langgraph_stops_before_is_one(of_langgraph: dict[str, Runs]) -> None:
    assert sorted(erased(of_langgraph["approved"])[:2]) == [
        ("call_0", '{"number":3}', "3 erased", False),
        ("call_1", '{"number":4}', "4 erased", False),
    ]
    assert erased(of_langgraph["approved"])[2:] == [("call_0", '{"number":5}', "no", True)]


@pytest.fixture(scope="module")
def of_pydantic_ai(tmp_path_factory: pytest.TempPathFactory) -> list[Runs]:
    cases: list[tuple[str, Script, dict[str, str]]] = [
        ("pydantic_ai_agent", weather, {}),
        ("approved_pydantic_ai", erasing, {}),
    ]
    return run_each_twice(["pydantic_ai.models.openai"], cases, tmp_path_factory.mktemp("pydantic_ai"))


def test_a_tool_call_of_pydantic_ai_that_waits_for_a_yes_is_one(of_pydantic_ai: list[Runs]) -> None:
    assert sorted(erased(of_pydantic_ai[1])) == [
        ("call_0", '{"number":3}', "3 erased", False),
        ("call_0", '{"number":5}', "no", True),
        ("call_1", '{"number":40}', "40 erased", False),
    ]


def test_pydantic_ai(of_pydantic_ai: list[Runs]) -> None:
    runs = of_pydantic_ai[0]
    check(runs)
    assert runs.bare == ["name='Rome' degrees=4", "name='Athens' degrees=6"]
    executions: dict[str, set[str]] = {}
    for call in runs.calls:
        city = texts(call.attributes[semconv.INPUT_MESSAGES])[0]
        executions.setdefault(city, set()).add(call.attributes[semconv.EXECUTION_ID])
    assert {tool[:2] for tool in runs.tools} >= {("weather", "call_Rome"), ("weather", "call_Athens")}
    assert set(runs.callers) == {"agent"}
    rome, athens = executions.values()
    assert not rome & athens, "two runs at once are distinguished"


def doubling(asked: Asked) -> Reply:
    if "helper" in asked.tools:
        if not asked.results and len(asked.users) == 1:
            return Reply(calls=(Call("helper", {"task": "Double 21"}, "call_helper"),))
        return Reply(calls=(Call("final_answer", {"answer": "42"}, "call_final"),))
    if "42" not in asked.users[-1] + "".join(asked.results):
        return Reply(calls=(Call("double", {"number": 21}, "call_double"),))
    return Reply(calls=(Call("final_answer", {"answer": "It is 42"}, "call_helped"),))


def test_smolagents(tmp_path: Path) -> None:
    runs = run_twice("smolagents_agent", doubling, tmp_path)
    check(runs)
    assert len(runs.calls) == 4
    assert runs.bare == ["42"]
    assert runs.callers == ["manager", "helper", "helper", "manager"]
    managed, double, *_ = runs.tools
    assert managed[0] == "helper"
    assert double == ("double", "", '"42"')


def surveying(asked: Asked) -> Reply:
    if not asked.results:
        return Reply(calls=(Call("area", {"width": 3, "height": 4}, "call_area"),))
    return Reply("It is " + asked.results[0])


@pytest.fixture(scope="module")
def autogen(tmp_path_factory: pytest.TempPathFactory) -> list[Runs]:
    """Both programs, in forks of one process: it takes seconds to import AutoGen."""

    def echoing(asked: Asked) -> Reply:
        return Reply(f"{asked.users[0]}, done")

    modules = ["autogen_agentchat.teams", "autogen_ext.models.openai"]
    cases = [("autogen_agent", surveying, {}), ("shared_runtime_autogen", echoing, {})]
    return run_each_twice(modules, cases, tmp_path_factory.mktemp("autogen"))


def test_autogen(autogen: list[Runs]) -> None:
    runs = autogen[0]
    check(runs)
    assert len(runs.calls) == 2
    assert runs.bare[-1].strip() == "It is 12"
    assert runs.callers == ["surveyor"] * 2
    assert [(tool.name, tool.result, tool.inferred) for tool in build_trajectories(runs.spans)[0].tool_calls] == [
        ("area", "12", False)
    ]


def test_messages_of_autogen_are_of_the_run_that_sent_them_whoever_began_the_runtime(autogen: list[Runs]) -> None:
    runs = autogen[1]
    assert runs.bare == runs.captured == ["asked, done", "measured, done"]
    (run,) = build_trajectories(runs.spans)
    names = {agent.id: agent.name for agent in run.agents}
    callers = {placed.call.messages[-1].parts[0]: names[placed.agent_id] for placed in run.calls}
    assert run.incomplete == ""
    assert callers == {  # the first two have agents of their own, which no span declares
        TextPart("asked"): "sub-agent",
        TextPart("published"): "sub-agent",
        TextPart("measured"): "surveyor",
    }


def arttrace_run(program: str, server: ScriptedServer, data: Path, **more: str) -> str:
    start = "from arttrace.commands import main; main()"
    command = [sys.executable, "-c", start, "run", "--dir", str(data), "--", program]
    env = environment(server, data, API="chat", **more)
    return finish(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))


def test_arttrace_run_records_an_unmodified_program_and_routes_one_agent_of_it(tmp_path: Path) -> None:
    program = str(HERE / "programs" / "openai_agents.py")
    with serve_script(order_desk) as vendor, serve_script(order_desk) as policy:
        route = f"gpt-4o[Refunds]=policy:latest@{policy.url}"
        printed = arttrace_run(program, vendor, tmp_path, ARTTRACE_ROUTE=route)
        assert printed.startswith("['Done, refunded 3', 'Refunds'")
        assert [sent.json["model"] for sent in vendor.sent] == ["gpt-4o"] * 2
        assert [sent.json["model"] for sent in policy.sent] == ["policy:latest"] * 4
        assert not [sent for sent in policy.sent if "authorization" in sent.headers]
    spans = finished_spans(tmp_path)
    operations = Counter(span.attributes[semconv.OPERATION_NAME] for span in spans)
    assert operations == {"chat": 6, "execute_tool": 4, "invoke_agent": 5}
    assert sum(semconv.TOKEN_IDS in span.attributes for span in spans) == 4
    (root,) = [span for span in spans if span.parent_span_id is None]
    assert root.attributes[semconv.ENTRY] == program
    assert root.attributes[semconv.TRAJECTORY_SPAN_COUNT] == 14
