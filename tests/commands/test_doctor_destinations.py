"""`arttrace doctor` on where spans go: receivers and Langfuse are asked for address and key, and are sent nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from collector_process import collecting
from langfuse_server import SECRET, LangfuseServer, langfuse_server
from otlp_receiver import receiving

from arttrace.commands import cli
from arttrace.system.paths import DataDir

KEY = "very-secret-key-of-mine"
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("ARTTRACE_", "OTEL_", "OPENAI_", "LANGFUSE_")) and name != "ARTTRACE_RAISE":
            monkeypatch.delenv(name)


def doctor(root: Path, code: int) -> list[dict[str, str]]:
    done = CliRunner().invoke(cli, ["doctor", "--json", "--dir", str(root)])
    assert done.exit_code == code, done.output
    assert KEY not in done.output
    assert SECRET not in done.output
    return [check for check in json.loads(done.stdout) if check["name"] in ("collector", "receiver", "langfuse")]


def test_the_key_of_a_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDir(tmp_path / "data")
    with collecting(data, ARTTRACE_API_KEY=KEY) as (_, url):
        monkeypatch.setenv("ARTTRACE_ENDPOINT", url)
        for key, code, state in (("wrong", 1, "error"), (KEY, 0, "ok")):
            monkeypatch.setenv("ARTTRACE_API_KEY", key)
            [found] = doctor(tmp_path / "own", code)
            assert (found["name"], found["state"], "ARTTRACE_API_KEY" in found["hint"]) == (
                "collector",
                state,
                state == "error",
            )


def test_further_receivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver, receiving() as closed:
        closed.always = lambda _spans: (401, {"content-type": "text/plain"}, f"bad key {KEY}".encode())
        monkeypatch.setenv("ARTTRACE_ENDPOINT", f"local,{receiver.url},{NOBODY}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", closed.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer {KEY}")
        takes, away, refuses = doctor(tmp_path, 1)
        assert (takes["state"], takes["found"]) == ("ok", f"{receiver.url} takes spans")
        assert (away["state"], "does not answer" in away["found"], bool(away["hint"])) == ("error", True, True)
        assert (refuses["state"], refuses["found"]) == ("error", f"{closed.url} answers 401: bad key [secret]")
        assert "headers" in refuses["hint"]
        assert (receiver.spans, closed.spans) == ([], [])


def test_langfuse_is_named_only_where_it_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor(tmp_path, 0) == []
    monkeypatch.setenv("ARTTRACE_LANGFUSE", "1")
    [found] = doctor(tmp_path, 1)
    assert (found["state"], found["found"]) == ("error", "LANGFUSE_PUBLIC_KEY is not set")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", KEY)
    monkeypatch.delenv("ARTTRACE_LANGFUSE")
    [found] = doctor(tmp_path, 0)  # another program's, it may be
    assert (found["state"], found["found"]) == ("warning", "LANGFUSE_PUBLIC_KEY is not set")


def test_whose_project_the_keys_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with langfuse_server() as server:
        _set(server, monkeypatch)
        [by_hand] = doctor(tmp_path, 0)
        assert by_hand["state"] == "ok"
        assert f"project tests at {server.url}: " in by_hand["found"]
        assert "ARTTRACE_LANGFUSE=1" in by_hand["found"]
        monkeypatch.setenv("ARTTRACE_LANGFUSE", "1")
        [live] = doctor(tmp_path, 0)
        assert live["found"].endswith("runs are sent there as they end")
        page = b"<html>log in</html>"
        server.script = [lambda _path, _body: (200, {"content-type": "text/html"}, page)]
        [of_page] = doctor(tmp_path, 1)
        assert (of_page["state"], "names no project" in of_page["found"]) == ("error", True)
        monkeypatch.setenv("LANGFUSE_SECRET_KEY", KEY)
        [refused] = doctor(tmp_path, 1)
        assert "refuses the keys (401)" in refused["found"]
        assert "LANGFUSE_SECRET_KEY" in refused["hint"]
        assert server.observations == {}
    [away] = doctor(tmp_path, 1)
    assert "does not answer" in away["found"]


def _set(server: LangfuseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("url", ["http://a\udcff", "http://127.0.0.1:9/\udcff", "http://a..example", "http://a:0"])
def test_an_address_that_nobody_can_ask_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The command ended with a traceback, of the letters of the address or of its host."""
    monkeypatch.setenv("ARTTRACE_ENDPOINT", url)
    [found] = doctor(tmp_path, 1)
    assert (found["name"], found["state"]) == ("collector", "error")
    assert "is not a URL of the form http://host:port" in found["found"]
    assert "ARTTRACE_ENDPOINT" in found["hint"]


def test_a_variable_whose_name_is_no_utf8_is_in_the_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTTRACE_ENDPONT\udcff", "1")
    done = CliRunner().invoke(cli, ["doctor", "--json", "--dir", str(tmp_path)], catch_exceptions=False)
    [found] = [check for check in json.loads(done.stdout) if check["name"] == "environment"]
    assert found["found"] == "nothing reads ARTTRACE_ENDPONT\ufffd"
