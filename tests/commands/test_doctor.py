"""`arttrace doctor`: what is in order is said, and what is not with its cause, a remedy and exit code 1."""

from __future__ import annotations

import errno
import importlib.machinery
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import forked_arttrace
import pytest
from asks_by_httpx import ASK, CAPTURED
from chat_server import serve
from click.testing import CliRunner
from simulated_agent import Run, message, research_run

from arttrace.commands import cli
from arttrace.commands.doctor import machine
from arttrace.records.values.units import size_text
from arttrace.store import Store
from arttrace.system import cpu
from arttrace.system.paths import DataDir


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARTTRACE_ENDPOINT", "ARTTRACE_DIR", "ARTTRACE_POLICY_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def _doctor(root: Path, code: int = 0) -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(cli, ["doctor", "--json", "--dir", str(root)])
    assert done.exit_code == code, done.output
    return {check["name"]: check for check in json.loads(done.stdout)}


def test_all_is_in_order(tmp_path: Path) -> None:
    root = tmp_path / "data"
    assert {check["state"] for check in _doctor(root).values()} == {"ok"}
    with Store.open(DataDir(root), create=True) as store:
        store.append(research_run("a"))
    root.chmod(0o700)
    found = _doctor(root)
    assert {check["state"] for check in found.values()} == {"ok"}
    assert found["store"]["found"].startswith("1 run, ")
    shown = CliRunner().invoke(cli, ["doctor", "--dir", str(root)]).stdout.splitlines()
    assert shown[0].split()[:3] == ["ok", "python", sys.version.split()[0]]


def test_a_setting_that_is_misspelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTTRACE_TRAIN_MIN_GROUPS", "4")
    monkeypatch.setenv("ARTTRACE_SAMPLE", "1")
    assert "environment" not in _doctor(tmp_path)
    monkeypatch.setenv("ARTTRACE_ENDPIONT", "http://127.0.0.1:1")
    found = _doctor(tmp_path)["environment"]
    assert (found["state"], found["found"]) == ("warning", "nothing reads ARTTRACE_ENDPIONT")
    assert found["hint"] == "ARTTRACE_ENDPOINT may be meant."


def test_it_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("arttrace.capture.base.variables._named", set())
    monkeypatch.setenv("ARTTRACE_ENDPIONT", "http://127.0.0.1:1")
    assert "environment" in _doctor(tmp_path)
    assert caplog.messages == []


def test_a_package_that_is_missing_or_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "rich":
            raise importlib.metadata.PackageNotFoundError(name)
        return {"wrapt": "1.2", "openai": "1.99.0"}.get(name) or installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = _doctor(tmp_path / "data", code=1)
    assert "wrapt 1.2 is not >=1.17; rich is not installed" in found["packages"]["found"]
    assert "pip install 'arttrace[store," in found["packages"]["hint"]
    assert found["openai"]["state"] == "error"


@pytest.mark.parametrize(
    "absent", [("openai",), ("openai", "anthropic", "google-genai", "mistralai", "ollama", "groq")]
)
def test_without_the_openai_client(absent: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name in absent:
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.10.0" if name == "anthropic" else installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: [])
    monkeypatch.setattr("arttrace.commands.doctor.command.hooked_modules", lambda: {"anthropic._base_client"})
    found = _doctor(tmp_path / "data")
    if "anthropic" in absent:
        assert found["openai"]["state"] == "warning"
        assert (
            "calls of openai, anthropic, google-genai, mistralai, ollama, boto3, litellm, groq and others"
            in found["openai"]["hint"]
        )
    else:
        assert "openai" not in found
        assert (found["anthropic"]["state"], found["anthropic"]["found"]) == ("ok", "2.10.0")


def test_another_trainer_and_a_directory_that_others_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.commands.doctor.command.foreign_trainer", lambda: "/home/me/trainer.py")
    root = tmp_path / "data"
    root.mkdir()
    root.chmod(0o755)
    found = _doctor(root, code=1)
    assert "/home/me/trainer.py" in found["trainer"]["found"]
    assert found["data directory"]["state"] == "warning"
    assert found["data directory"]["hint"] == f"Other users can read it: chmod -R go= {root}"


@pytest.mark.parametrize("made", [True, False])
def test_a_directory_that_cannot_be_written(made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "data"
    if made:
        root.mkdir()
    read_only = root if made else tmp_path

    def refused(path: str, mode: int = 0o777) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "mkdir", refused)
    found = _doctor(root, code=1)["data directory"]
    assert found["state"] == "error"
    cannot = f"{read_only} cannot be written: permission denied"
    assert found["found"] == (f"{root} cannot be made: " * (not made)) + cannot
    assert "ARTTRACE_DIR" in found["hint"]


@pytest.mark.parametrize("in_the_way", ["a file", "/proc"])
def test_a_directory_that_can_never_be_made(in_the_way: str, tmp_path: Path) -> None:
    """Permissions allow it: root may write in /proc, and a program's file may be written and run."""
    above = Path(in_the_way)
    if above.is_absolute():
        if not above.is_dir():
            pytest.skip("no /proc here")
    else:
        above = tmp_path / in_the_way
        above.touch(0o700)
    found = _doctor(above / "x", code=1)["data directory"]
    assert (found["state"], found["found"].partition(":")[0]) == ("error", f"{above / 'x'} cannot be made")
    assert found["found"].partition(": ")[2].startswith(f"{above} cannot be written: ")


def test_the_look_at_a_directory_leaves_nothing(tmp_path: Path) -> None:
    _doctor(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("machine", "flags", "state"),
    [("x86_64", "fpu avx", "error"), ("x86_64", "fpu avx2", "ok"), ("aarch64", "fp asimd", "ok"), ("x86_64", "", "ok")],
)
def test_a_cpu_that_vllm_cannot_run_on(
    machine: str, flags: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    engine = _doctor(tmp_path / "data", code=state == "error")["engine"]
    assert engine["state"] == state
    assert ("needs AVX2" in engine["found"], "--vllm-url" in engine["hint"]) == (state == "error",) * 2


def test_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    library = tmp_path / "torch" / "lib" / "libtorch_python.so"
    library.parent.mkdir(parents=True)
    library.write_text("no library")
    (tmp_path / "torch" / "__init__.py").write_text(f"import ctypes\nctypes.CDLL({str(library)!r})\n")
    code = "from arttrace.commands import main; main()"
    command = [sys.executable, "-c", code, "doctor", "--json", "--dir", str(tmp_path / "data")]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    torch = {check["name"]: check for check in json.loads(ran.stdout)}["torch"]
    assert (ran.returncode, torch["state"]) == (1, "error")
    assert torch["found"].startswith(f"torch is installed, and cannot be imported: {library}: ")
    assert "torch's CPU build" in torch["hint"]


def test_a_torch_whose_import_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "torch" / "lib" / "libtorch_python.so"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "torch" / "__init__.py").write_text("import time\ntime.sleep(60)\n")
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(machine, "find_spec", lambda _name: spec)
    monkeypatch.setattr(machine, "_TORCH_TIMEOUT_S", 0.1)
    found = _doctor(tmp_path / "data")
    assert found["torch"] == {
        "name": "torch",
        "state": "warning",
        "found": "its import has not ended after 0 s",
        "hint": "Its files may lie on a slow or remote disk, or the machine be busy: try `python -c 'import torch'`.",
    }


def test_a_torch_for_the_cpu_beside_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "bin" / "nvidia-smi"
    asked.parent.mkdir()
    asked.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB, 580.1'\n")
    asked.chmod(0o755)
    monkeypatch.setenv("PATH", f"{asked.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(machine, "installed_version", lambda _name: "2.13.0+cpu")
    found = _doctor(tmp_path / "data")
    assert found["gpu"]["found"] == "NVIDIA H100, 81559 MiB, 580.1"
    assert found["torch"]["found"] == "2.13.0+cpu is built for the CPU alone"


def test_a_vllm_for_cards_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"vllm": "0.32.0", "torch": "2.13.0"}
    monkeypatch.setattr(machine, "installed_version", versions.get)
    monkeypatch.setenv("PATH", str(tmp_path))  # without nvidia-smi
    engine = _doctor(tmp_path / "data")["engine"]
    assert engine["state"] == "warning"
    assert engine["found"] == "vllm 0.32.0, which is built for cards: none is found here"
    assert "requirements/cpu.txt" in engine["hint"]
    versions["torch"] = "2.13.0+cpu"
    assert _doctor(tmp_path / "data")["torch"]["state"] == "warning"


def test_a_damaged_store(tmp_path: Path) -> None:
    DataDir(tmp_path).store.write_bytes(b"no database at all" * 1000)
    found = _doctor(tmp_path, code=1)
    assert found["store"]["state"] == "error"
    assert found["store"]["hint"]


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.headers.get("authorization") == "Bearer right"
        self.send_response(200 if known else 401)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *arguments: object) -> None: ...


def test_servers_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    (root / "serving.json").write_text('{"url": "http://127.0.0.1:9"}')
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("ARTTRACE_ENDPOINT", url)
    monkeypatch.setenv("ARTTRACE_API_KEY", "wrong")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    try:
        found = _doctor(root, code=1)
    finally:
        server.shutdown()
        server.server_close()
    assert found["model server"]["state"] == "ok"
    assert found["collector"]["state"] == found["policy server"]["state"] == "error"
    assert found["collector"]["found"] == f"{url} answers 401"
    assert "ARTTRACE_API_KEY" in found["collector"]["hint"]
    assert "does not answer (ConnectError)" in found["policy server"]["found"]
    assert "wrong" not in json.dumps(found)


def _checked(arttrace: Path, root: Path, program: Path, **environment: str) -> tuple[int, dict[str, dict[str, str]]]:
    """What `arttrace doctor -- PROGRAM` says, in a process of its own: the program prints to its streams."""
    command = [str(arttrace), "doctor", "--json", "--dir", str(root), "--"]
    done = subprocess.run(
        [*command, sys.executable, str(program)], capture_output=True, text=True, env={**os.environ, **environment}
    )
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)}


@pytest.fixture
def arttrace(tmp_path: Path) -> Iterator[Path]:
    with forked_arttrace.on_path(tmp_path) as folder:
        yield folder / "arttrace"


def test_a_program_is_run_once_and_leaves_nothing(arttrace: Path, tmp_path: Path) -> None:
    root, program = tmp_path / "data", tmp_path / "agent.py"
    program.write_text(f"{ASK}\nprint('said by the program')\nask('hi')\n")
    with serve() as server:
        _, found = _checked(arttrace, root, program, OPENAI_BASE_URL=server.url, **CAPTURED)
    assert found["program"]["state"] == "ok"
    assert found["captured"]["found"].startswith("1 model call and 0 tool calls in 1 run")
    assert "127.0.0.1" in found["captured"]["found"]
    assert "token ids" in found
    assert not root.exists()
    program.write_text("raise SystemExit(3)\n")
    code, found = _checked(arttrace, root, program)
    assert code == 1
    assert found["program"]["found"] == "it ended with exit code 3"
    assert found["captured"]["state"] == "error"
    assert (
        "Calls of openai, anthropic, google-genai, mistralai, ollama, boto3, litellm, groq and others"
        in found["captured"]["hint"]
    )
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    _, found = _checked(arttrace, root, program)
    assert found["program"]["found"].startswith("it ended with signal SIGILL: an illegal instruction")


def test_a_client_that_is_not_captured_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version
    here = {"google-generativeai": "0.8.6", "google-genai": "3.6.1", "claude-agent-sdk": "0.2.110"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: here.get(name) or installed(name))
    found = _doctor(tmp_path / "data")
    assert (found["google-genai"]["state"], found["google-genai"]["found"]) == ("ok", "3.6.1")
    assert found["google-generativeai"]["found"] == "0.8.6, whose calls are not captured"
    assert "OpenAI-compatible" in found["google-generativeai"]["hint"]
    assert found["claude-agent-sdk"]["found"] == "0.2.110, whose calls are not captured"
    assert "0.2.160 or newer" in found["claude-agent-sdk"]["hint"]
    here["claude-agent-sdk"] = "0.2.160"
    assert _doctor(tmp_path / "data")["claude-agent-sdk"]["state"] == "ok"


def test_tokens_of_a_policy_that_cannot_be_trained_on(tmp_path: Path) -> None:
    root = tmp_path / "data"
    run = Run("a")
    run.chat("m", [message("user", "hi")], message("assistant", "ho"), at=10, TOKEN_IDS=None, LOGPROBS=None)
    with Store.open(DataDir(root), create=True) as store:
        store.append(run.end(at=100))
    root.chmod(0o700)
    found = _doctor(root)["token ids"]
    assert (found["state"], found["found"][:2]) == ("warning", "0 ")
    assert "return_token_ids" in found["hint"]
    run = Run("b")
    run.chat("m", [message("user", "hi")], message("assistant", "ho"), at=10)
    with Store.open(DataDir(root)) as store:
        store.append(run.end(at=100))
    found = _doctor(root)["token ids"]
    assert (found["state"], found["found"].partition("; ")[2]) == ("ok", "set aside: 1 call, no token ids")


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (312, "312 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (9_960, "10 KB"),
        (999_600, "1.0 MB"),
        (1_060_864, "1.1 MB"),
        (71 * 10**9, "71 GB"),
        (3 * 10**15, "3000 TB"),
    ],
)
def test_a_size_is_reported_in_the_largest_unit_that_fits(size: int, said: str) -> None:
    """A few kilobytes that were not delivered were 0.0 MB."""
    assert size_text(size) == said
