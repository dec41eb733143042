"""The frameworks of the table in docs/frameworks.md, each tried in an environment of its own with its real packages.

python tests/frameworks/environments.py [NAME ...]: makes the environments under a temporary folder, one after the
other (TEST_ENVIRONMENTS names a folder to keep them in), runs the same small agent in each (an agent that asks
another one, which uses a tool) against a stand-in of OpenAI's server, and prints the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from own_environment import kept_in  # noqa: E402
from scripted_server import Asked, Call, Reply, Sent, serve_script  # noqa: E402
from spool import finished_spans  # noqa: E402

from arttrace.records import semconv  # noqa: E402
from arttrace.records.span import SpanRow  # noqa: E402
from arttrace.trajectories import build_trajectories  # noqa: E402


@dataclass(frozen=True)
class Framework:
    """A framework, as the table names it; the first of its packages is the one whose version is shown."""

    title: str
    packages: tuple[str, ...]
    program: str
    asks: str = "ask_helper"
    """The tool by which the first agent reaches the second."""
    answers: str | None = None
    """A tool that the framework ends a run with."""

    @property
    def distribution(self) -> str:
        """Whose version is shown."""
        return self.packages[0].partition("[")[0]


_EXPORTER = "opentelemetry-exporter-otlp-proto-http"

FRAMEWORKS = {
    each.program: each
    for each in (
        Framework("LangChain, LangGraph", ("langchain", "langchain-openai"), "langgraph"),
        Framework("OpenAI Agents SDK", ("openai-agents",), "openai_agents"),
        Framework("PydanticAI", ("pydantic-ai-slim[openai]",), "pydantic_ai"),
        Framework("CrewAI", ("crewai",), "crewai"),
        Framework("LlamaIndex", ("llama-index-core", "llama-index-llms-openai"), "llamaindex"),
        Framework("Google ADK", ("google-adk", "litellm", "mcp", _EXPORTER), "google_adk", asks="helper"),
        Framework("Agno", ("agno", "openai"), "agno", asks="delegate_task_to_member"),
        Framework("Strands Agents", ("strands-agents[openai]",), "strands"),
        Framework("Microsoft Agent Framework", ("agent-framework-core", "agent-framework-openai"), "agent_framework"),
        Framework("AutoGen", ("autogen-agentchat", "autogen-ext[openai]"), "autogen", asks="helper"),
        Framework("smolagents", ("smolagents[openai]",), "smolagents", asks="helper", answers="final_answer"),
    )
}
COLUMNS = ("calls", "tools", "agents", "routing", "tokens")


@dataclass
class Tried:
    """What one framework's program gave, and what is recorded of it."""

    framework: Framework
    version: str
    printed: str
    vendor: list[Sent]
    policy: list[Sent]
    spans: list[SpanRow]

    @property
    def row(self) -> dict[str, bool]:
        """What the table says of it."""
        calls = self.of(semconv.OPERATION_CHAT)
        by_id = {span.span_id: span for span in self.spans}
        names = Counter(agent_above(by_id, call) for call in calls)
        (trajectory,) = build_trajectories(self.spans)
        helpers = [agent for agent in trajectory.agents if agent.name == "helper"]
        policies = [call for call in calls if semconv.TOKEN_IDS in call.attributes]
        results = {tool.name: str(tool.result) for tool in trajectory.tool_calls}
        ran = [(tool.name, tool.inferred) for tool in trajectory.tool_calls if tool.name != self.framework.answers]
        return {
            "calls": len(calls) == len(self.vendor) + len(self.policy) == 4 and not trajectory.incomplete,
            "tools": "42" in results.get("double", "")
            and sorted(ran) == sorted([("double", False), (self.framework.asks, False)]),
            "agents": names == {"boss": 2, "helper": 2} and len(helpers) == 1 and helpers[0].parent_id is not None,
            "routing": (len(self.vendor), len(self.policy)) == (2, 2)
            and all("authorization" not in sent.headers for sent in self.policy),
            "tokens": len(policies) == 2,
        }

    def of(self, operation: str) -> list[SpanRow]:
        """The spans of one operation."""
        return [span for span in self.spans if span.attributes[semconv.OPERATION_NAME] == operation]


def agent_above(by_id: dict[str, SpanRow], span: SpanRow) -> str:
    """The name of the agent that a span belongs to."""
    above = by_id[span.parent_span_id or ""]
    while semconv.AGENT_NAME not in above.attributes:
        above = by_id[above.parent_span_id or ""]
    return str(above.attributes[semconv.AGENT_NAME])


def doubling(framework: Framework) -> Any:
    """The model: the first agent asks the second, which uses its tool; a framework's own last tool is used where there
    is one."""

    def says(text: str, tools: list[str]) -> Reply:
        if framework.answers in tools:
            return Reply(calls=(Call(framework.answers or "", {"answer": text}, "call_final"),))
        return Reply(text)

    def script(asked: Asked) -> Reply:
        said = " ".join([*asked.results, *asked.users[1:]])
        if framework.asks in asked.tools:
            if "42" in said:
                return says("Done: 42", asked.tools)
            return Reply(calls=(Call(framework.asks, arguments(asked, framework.asks), "call_ask"),))
        if "42" in said:
            return says("It is 42", asked.tools)
        return Reply(calls=(Call("double", {"number": 21}, "call_double"),))

    return script


def arguments(asked: Asked, tool: str) -> dict[str, str]:
    """Every argument that a tool needs, as its schema in the request says."""
    functions = [each.get("function", each) for each in asked.request["tools"]]
    schema = next(each for each in functions if each["name"] == tool).get("parameters") or {}
    needed = schema.get("required") or list(schema.get("properties") or ())
    return {name: "helper" if name.endswith("id") else "Double 21" for name in needed}


def environment(framework: Framework, folder: Path) -> Path:
    """The Python of the framework's environment, made now where it is not there yet."""
    at = folder / framework.program
    python = at / "bin" / "python"
    if not (at / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(at)], check=True)
        ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, *framework.packages, *ours], check=True, timeout=1500)
        (at / "made").touch()
    return python


def try_out(framework: Framework, folder: Path, data: Path) -> Tried:
    """Run its program as it is and as a trajectory, the second agent's calls routed to another server."""
    python = environment(framework, folder)
    with serve_script(doubling(framework)) as vendor, serve_script(doubling(framework)) as policy:
        data.mkdir(exist_ok=True)
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOME": str(data),  # what a framework keeps for itself
            "OPENAI_API_KEY": "sk-test-0123456789",
            "OPENAI_BASE_URL": vendor.url,
            "OPENAI_API_BASE": vendor.url,
            "OTEL_SDK_DISABLED": "true",
            "CREWAI_DISABLE_TELEMETRY": "true",
            "CREWAI_TRACING_ENABLED": "false",
            "AGNO_TELEMETRY": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LANGSMITH_TRACING": "false",
            "ARTTRACE_DIR": str(data),
            "ARTTRACE_RAISE": "1",
            "ARTTRACE_ROUTE": f"gpt-4o[helper]=policy:latest@{policy.url}",
        }
        command = [str(python), str(HERE / "twice.py"), f"dispatch_{framework.program}"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-6000:]
        bare, captured = json.loads(done.stdout.splitlines()[-1])
        assert bare == captured, "the program's result is not what it was"
        show = [str(python), "-c", f"import importlib.metadata as m; print(m.version({framework.distribution!r}))"]
        version = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
        bare_calls = (len(vendor.sent) + len(policy.sent)) // 2
        return Tried(framework, version, captured, vendor.sent[bare_calls:], policy.sent, finished_spans(data))


def table_row(tried: Tried) -> str:
    """One line of the table."""
    marks = ("yes" if tried.row[column] else "no" for column in COLUMNS)
    return f"| {tried.framework.title} | {tried.version} | {' | '.join(marks)} |"


def main() -> None:
    print(f"| framework | version | {' | '.join(COLUMNS)} |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    with tempfile.TemporaryDirectory() as made:
        folder = kept_in(Path(made))
        for name in sys.argv[1:] or FRAMEWORKS:
            with tempfile.TemporaryDirectory() as data:
                tried = try_out(FRAMEWORKS[name], folder, Path(data))
            print(table_row(tried), flush=True)


if __name__ == "__main__":
    main()
