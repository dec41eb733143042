"""What the line at the end of `arttrace run` says of calls whose answers come by other ways, or in forms that nothing
reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chat_server import serve

from arttrace.capture.export import summary

ASKS = """
import contextlib
from openai import OpenAI
client = OpenAI(max_retries=0)
for ask in (
    lambda: client.decisions.create(model="m", input="hi", questions=[]),
    lambda: client.responses.compact(model="m", input="hi"),
    lambda: client.beta.responses.compact(model="m", input="hi"),
    lambda: client.post("/evals/e1/runs", cast_to=object, body={}),
    lambda: client.post("/live/sessions", cast_to=object, body={}),
    lambda: client.post("/live/sessions/s1/fork", cast_to=object, body={}),
    lambda: client.post("/live/sessions/s1/hangup", cast_to=object, body={}),
    lambda: client.post("/realtime/calls", cast_to=object, body={}),
    lambda: client.post("/realtime/calls/c1/accept", cast_to=object, body={}),
    lambda: client.post("/realtime/client_secrets", cast_to=object, body={}),
):
    with contextlib.suppress(Exception):
        ask()
"""


def test_each_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(ASKS)
    command = [sys.executable, "-m", "arttrace", "run", "--dir", str(tmp_path / "data"), str(tmp_path / "agent.py")]
    with serve() as server:
        env = {**os.environ, "OPENAI_API_KEY": "sk-test-key-1234", "OPENAI_BASE_URL": server.url}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for count, path, why in (
        ("1 request", "decisions", "arttrace does not read this API"),
        ("2 requests", "responses/compact", "arttrace does not read this API"),
        ("1 request", "evals/*/runs", "their answers come later"),
        *(
            ("1 request", path, "what is said comes by another connection")
            for path in ("live/sessions", "live/sessions/*/fork", "realtime/calls", "realtime/calls/*/accept")
        ),
    ):
        assert f"{count} to 127.0.0.1/v1/{path} (no setting captures them: {why}" in done.stderr
    assert "hangup" not in done.stderr
    assert "client_secrets" not in done.stderr


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("api.anthropic.com/v1/sessions", "api.anthropic.com/v1/sessions"),
        ("metrics.example.com/v1/sessions", None),
        ("api.anthropic.com/v1/deployments/d1/run", "api.anthropic.com/v1/deployments/*/run"),
        ("api.anthropic.com/v1/deployments", None),
        ("api.anthropic.com/v1/dreams", "api.anthropic.com/v1/dreams"),
        ("metrics.example.com/v1/dreams", None),
        ("127.0.0.1/agents/A/agentAliases/B/sessions/s1/text", "127.0.0.1/agents/A/agentAliases/B/sessions/*/text"),
        ("127.0.0.1/retrieveAndGenerateStream", "127.0.0.1/retrieveAndGenerateStream"),
        ("bedrock-agent-runtime.eu-west-1.amazonaws.com/flows/F/aliases/A",
         "bedrock-agent-runtime.eu-west-1.amazonaws.com/flows/F/aliases/A"),
        ("metrics.example.com/flows/F/aliases/A", None),
        ("bedrock.eu.amazonaws.com/model-invocation-job", "bedrock.eu.amazonaws.com/model-invocation-job"),
        ("bedrock-runtime.eu.amazonaws.com/async-invoke", "bedrock-runtime.eu.amazonaws.com/async-invoke"),
        ("metrics.example.com/async-invoke", None),
        ("127.0.0.1/knowledgebases/K/retrieve", None),
    ],
)  # fmt: skip
def test_what_anthropic_and_amazon_run_is_distinguished_from_others(address: str, named: str | None) -> None:
    host, slash, path = address.partition("/")
    said = summary.passed(host, slash + path, summary.BY_NONE)
    assert (said and said.partition(" (no setting captures them: ")[0]) == named
