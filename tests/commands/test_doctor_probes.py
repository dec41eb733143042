"""`arttrace doctor --probe --judge`: others are asked with one small request each, and each failure has its remedy."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from answering_site import answering
from chat_server import completion
from click.testing import CliRunner
from collector_process import collecting
from otlp_receiver import receiving

from arttrace.commands import cli
from arttrace.rewards.judge_prompt import parse_prompt
from arttrace.store import open_store
from arttrace.system.paths import DataDir

KEY = "very-secret-key-of-mine"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("ARTTRACE_", "OTEL_", "OPENAI_", "LANGFUSE_")) and name != "ARTTRACE_RAISE":
            monkeypatch.delenv(name)


def doctor(root: Path, *options: str, code: int) -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(cli, ["doctor", "--json", "--dir", str(root), *options])
    assert done.exit_code == code, done.output
    assert KEY not in done.output
    return {check["name"]: check for check in json.loads(done.stdout)}


def test_a_judge_that_answers(tmp_path: Path, judge_server: Any) -> None:
    def fair(request: dict[str, Any]) -> tuple[int, Any]:
        runs = parse_prompt(request["messages"][1]["content"])
        scores = [
            {"trajectory_id": id, "explanation": "as it is", "score": float('"6"' in json.dumps(run))}
            for id, run in runs.items()
        ]
        answer: tuple[int, Any] = judge_server.says(json.dumps({"scores": scores}))(request)
        return answer

    judge_server.script = [fair]
    found = doctor(tmp_path, "--judge", "openai/stand-in", "--judge-base-url", judge_server.url, code=0)["judge"]
    assert found["state"] == "ok", found
    assert found["found"].startswith("openai/stand-in answers in ")
    assert "110 tokens" in found["found"]
    same = [{"trajectory_id": id, "explanation": "fine", "score": 0.5} for id in "12"]
    judge_server.script = [judge_server.says(json.dumps({"scores": same}))]
    found = doctor(tmp_path, "--judge", "openai/stand-in", "--judge-base-url", judge_server.url, code=0)["judge"]
    assert (found["state"], "judge-check" in found["hint"]) == ("warning", True)


@pytest.mark.parametrize(
    ("status", "body", "said", "remedy"),
    [
        (401, b'{"error": {"message": "Incorrect API key provided: %b"}}' % KEY.encode(), "refuses", "OPENAI_API_KEY"),
        (404, b'{"error": {"message": "no such model"}}', "is not known", "--judge-base-url"),
        (200, b"<!doctype html><html><body>log in</body></html>", "web page", "/v1"),
        (200, b'{"choices": [{"message": {"role": "assistant", "content": "fine"}}]}', "cannot be used", "stronger"),
    ],
    ids=["401", "404", "html", "unusable"],
)
def test_a_judge_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, said: str, remedy: str
) -> None:
    monkeypatch.setattr("arttrace.rewards.judge_calls.BACKOFF_S", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    kind = "text/html" if body.startswith(b"<") else "application/json"
    with answering(lambda _path: (status, kind, body)) as url:
        found = doctor(tmp_path, "--judge", "openai/stand-in", "--judge-base-url", url, code=1)["judge"]
    assert found["state"] == "error"
    assert said in found["found"]
    assert remedy in found["hint"]


def test_a_judge_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.rewards.judge_calls.BACKOFF_S", 0.01)
    options = ["--judge", "openai/stand-in", "--judge-base-url"]

    answers = threading.Event()

    def slow(_path: str) -> tuple[int, str, bytes]:
        answers.wait(60)
        return 200, "application/json", b"{}"

    with answering(slow) as url, monkeypatch.context() as patch:
        patch.setattr("arttrace.commands.doctor.probes._JUDGE_TIMEOUT_S", 0.2)
        found = doctor(tmp_path, *options, url, code=1)["judge"]
        answers.set()
    assert "did not answer in time" in found["found"]
    found = doctor(tmp_path, *options, "http://127.0.0.1:9/v1", code=1)["judge"]
    assert "cannot be reached" in found["found"]
    assert "Start it" in found["hint"]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_span_is_sent_and_found_and_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.commands.doctor.probes._ARRIVAL_S", 120.0)
    data = DataDir(tmp_path / "data")
    with collecting(data) as (_, url), receiving() as receiver:
        until(data.owner.exists)
        monkeypatch.setenv("ARTTRACE_ENDPOINT", f"{url},{receiver.url}")
        monkeypatch.setenv("ARTTRACE_DIR", str(data.root))
        found = doctor(data.root, "--probe", code=0)
        assert found["spans to the collector"]["state"] == "ok"
        assert found["spans in its store"]["found"] == "the span is there"
        assert found[f"spans to {receiver.url}"]["state"] == "ok"
        with open_store(data) as store:
            assert store.sql("SELECT name FROM spans")[1] == [("arttrace.doctor",)]
            assert store.summaries() == []
            assert store.sql("SELECT count(*) FROM trajectories")[1] == [(0,)]
    assert [span.name for span in receiver.spans] == ["arttrace.doctor"]


def test_receivers_that_take_no_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"<html>log in</html>"
    with answering(lambda path: (200, "text/html", page)) as html, receiving() as receiver:
        receiver.always = lambda _spans: (401, {"content-type": "text/plain"}, f"bad key {KEY}".encode())
        monkeypatch.setenv("ARTTRACE_ENDPOINT", f"local,{html.removesuffix('/v1')},http://127.0.0.1:9")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer {KEY}")
        found = doctor(tmp_path, "--probe", code=1)
    of_page = found[f"spans to {html.removesuffix('/v1')}"]
    assert (of_page["state"], "web page" in of_page["found"]) == ("error", True)
    assert "does not answer" in found["spans to http://127.0.0.1:9"]["found"]
    refused = found[f"spans to {receiver.url}"]
    assert ("401" in refused["found"], "key" in refused["hint"]) == (True, True)


def test_whether_token_ids_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = b'{"object": "list", "data": [{"id": "m"}]}'
    plain = b'{"id": "x", "object": "chat.completion", "model": "m", "choices": [{"index": 0, "finish_reason": "stop", '
    plain += b'"message": {"role": "assistant", "content": "4"}}]}'
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    name = "token ids of an answer"
    with answering(lambda path: (200, "application/json", models if path.endswith("models") else plain)) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        found = doctor(tmp_path, "--probe", code=0)[name]
        assert found["state"] == "warning"
        assert "without the prompt's token ids" in found["found"]
        assert "arttrace serve" in found["hint"]
    listed = 200, "application/json", models
    with answering(lambda path: listed if path.endswith("models") else (400, "", b"")) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        assert "answers 400" in doctor(tmp_path, "--probe", code=1)[name]["found"]
    with answering(lambda _path: (200, "text/html", b"<html></html>")) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        assert "lists no models" in doctor(tmp_path, "--probe", code=1)[name]["found"]
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "return_token_ids": True}
    whole = json.dumps(completion(asked)).encode()
    with answering(lambda path: (200, "application/json", models if path.endswith("models") else whole)) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        assert doctor(tmp_path, "--probe", code=0)[name]["found"] == f"m at {url}"
