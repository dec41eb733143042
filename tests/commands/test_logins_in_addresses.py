"""An address may hold a login, written well or badly: nothing that is shown of the address says it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from answering_site import answering
from click.testing import CliRunner
from simulated_agent import research_run

import arttrace
from arttrace.capture.base.langfuse_project import Connection
from arttrace.capture.base.routes import parse_routes
from arttrace.capture.base.settings import Settings
from arttrace.commands import cli
from arttrace.loop.model import TrainableModel
from arttrace.loop.remote.connection import ServerConnection
from arttrace.rewards import judge_calls
from arttrace.rewards.judge_errors import judge_error
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.views.langfuse.client import LangfuseClient

PLACE = "127.0.0.1:9/v1"
"""Where nobody answers."""
ADDRESSES = [
    f"http://me:S3CR3T-word@{PLACE}",
    f"http://me:S3CR3T/word@{PLACE}",
    f"http://me:8/S3CR3T@{PLACE}",
    f"http://S3CR3T/word@{PLACE}",
]


@pytest.fixture(params=ADDRESSES, ids=["a login", "a slash in it", "a number before the slash", "a token with a slash"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _shown(environment: dict[str, str], *arguments: str) -> str:
    names = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ARTTRACE_ENDPOINT", "ARTTRACE_POLICY_URL", "ARTTRACE_API_KEY")
    unset: dict[str, str | None] = dict.fromkeys(names)
    done = CliRunner().invoke(cli, arguments, env={**unset, **environment})
    return f"{done.output}{'' if isinstance(done.exception, SystemExit) else done.exception}"


def _filled(root: Path) -> str:
    with Store.open(DataDir(root), create=True) as store:
        store.append(research_run("x", scenario="s"))
        store.append(research_run("y", scenario="s"))
    return str(root)


def _checked(said: str) -> None:
    assert "S3CR3T" not in said.upper()  # hosts are written in small letters
    assert PLACE in said, said


@pytest.mark.parametrize("arguments", [("doctor",), ("doctor", "--probe")])
def test_doctor(tmp_path: Path, address: str, arguments: tuple[str, ...]) -> None:
    for name in ("OPENAI_BASE_URL", "ARTTRACE_POLICY_URL"):
        _checked(_shown({name: address, "OPENAI_API_KEY": "k"}, *arguments, "--dir", str(tmp_path)))
    assert "S3CR3T" not in _shown({"ARTTRACE_ENDPOINT": address}, *arguments, "--dir", str(tmp_path))


@pytest.mark.parametrize("status", [200, 401, 500])
@pytest.mark.parametrize("arguments", [("doctor",), ("doctor", "--probe")])
def test_doctor_of_a_server_that_answers(tmp_path: Path, status: int, arguments: tuple[str, ...]) -> None:
    with answering(lambda _path: (status, "application/json", b'{"data": [{"id": "m"}]}')) as url:
        address = url.replace("//", "//me:S3CR3T-word@")
        said = _shown({"OPENAI_BASE_URL": address, "OPENAI_API_KEY": "k"}, *arguments, "--dir", str(tmp_path))
    assert "S3CR3T" not in said
    assert url in said


def test_the_note_that_a_judge_is_asked_at_the_agents_address(tmp_path: Path, address: str) -> None:
    _checked(_shown({"OPENAI_BASE_URL": address}, "score", "--judge", "openai/o3", "--dir", _filled(tmp_path / "data")))


def test_a_judge_at_an_address(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_calls, "BACKOFF_S", 0.0)
    command = ("score", "--judge", "openai/o3", "--judge-base-url", address, "--dir", _filled(tmp_path / "data"))
    _checked(_shown({"OPENAI_API_KEY": "k"}, *command))


def test_an_address_in_what_a_judges_provider_says(address: str) -> None:
    _checked(str(judge_error(RuntimeError(f"no answer from {address}"), "openai/o3", {"api_base": address})))


def test_a_store_at_an_address(address: str) -> None:
    assert "S3CR3T" not in _shown({}, "ls", "--url", address)
    _checked(_shown({}, "ls", "--url", address.replace("http:", "htp:")))


def test_a_program_recorded_at_an_address(tmp_path: Path, address: str) -> None:
    said = _shown({}, "run", "--policy", address, "--dir", str(tmp_path), "--", "true")
    assert "S3CR3T" not in said
    assert "127.0.0.1:9" in said


def test_a_route_that_is_none(address: str) -> None:
    with pytest.raises(ArttraceError, match="is no route") as raised:
        parse_routes(f"gpt-4o=policy@{address.replace('http:', 'htp:')}")
    _checked(str(raised.value))
    with pytest.raises(ArttraceError, match="names no server") as raised:
        arttrace.route("gpt-4o", to="policy", base_url=address.replace("http:", "htp:"))
    _checked(str(raised.value))


def test_a_setting_that_is_no_address(address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Settings.resolve(dir=tmp_path, endpoint=address.replace("http:", "htp:"), trainable=[address[7:]])
    assert caplog.text.count(PLACE) == 2
    assert "S3CR3T" not in caplog.text


async def test_a_server_that_trains(address: str) -> None:
    with pytest.raises(ArttraceError, match="the server") as raised:
        await ServerConnection(address).status()
    assert "S3CR3T" not in str(raised.value)
    with pytest.raises(ArttraceError, match="begins with neither") as raised:
        ServerConnection(address.replace("http:", "htp:"))
    _checked(str(raised.value))


def test_the_step_of_a_served_model() -> None:
    model = TrainableModel(name="m", project="p", base_model="b")
    model.backend = object()  # type: ignore[assignment]  # all that is asked of it is that it is there
    with answering(lambda _path: (500, "text/plain", b"")) as url:
        model.inference_base_url = url.replace("//", "//me:S3CR3T-word@")
        with pytest.raises(ArttraceError, match=r"does not report its step: .*500") as raised:
            model.get_step()
    assert "S3CR3T" not in str(raised.value)
    model.inference_base_url = ADDRESSES[1]
    with pytest.raises(ArttraceError, match="does not report its step") as raised:
        model.get_step()
    assert "S3CR3T" not in str(raised.value)


def test_what_logs_call_a_receiver(address: str) -> None:
    receiver = arttrace.Receiver(address)
    assert "S3CR3T" not in f"{receiver!r} {receiver.called}".upper()
    assert "127.0.0.1:9" in receiver.called


@pytest.mark.parametrize(
    ("url", "called"),
    [
        ("https://otel.example.com/@team/v1/traces?api_key=S3CR3T", "https://otel.example.com"),
        ("https://otel.example.com/v1/traces?to=me@example.org&key=S3CR3T", "https://[secret]@example.org"),
        ("https://tok/en@example.org/v1/traces?api_key=S3CR3T", "https://[secret]@example.org"),
    ],
)
def test_no_log_calls_a_receiver_by_its_query(url: str, called: str) -> None:
    assert arttrace.Receiver(url).called == called


def test_a_langfuse_server(address: str, tmp_path: Path) -> None:
    environment = {"LANGFUSE_PUBLIC_KEY": "pk-x", "LANGFUSE_SECRET_KEY": "sk-long-enough", "LANGFUSE_BASE_URL": address}
    with pytest.raises(ArttraceError) as raised:
        LangfuseClient(Connection.resolve(environment), sleep=lambda _: None).page("/api/public/v2/observations", {})
    _checked(str(raised.value))
