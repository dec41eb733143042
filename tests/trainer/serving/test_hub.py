"""A base model by its name on the hub: from a stand-in hub on the loopback, from the cache, and when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from stand_in_engine import engine_in_a_thread

from arttrace.store import Store
from arttrace.system.errors import ServingError
from arttrace.system.paths import DataDir
from trainer.serving import start_serving
from trainer.serving.hub import hub_name

COMMIT = "a" * 40
CONFIG = {"vocab_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"not wanted",
    "consolidated.safetensors": b"the same weights, in the form of Mistral's own library",
    "original/model.safetensors": b"and in that of Meta's",
}
ASK = "from trainer.serving.hub import find_base_model; print(*find_base_model('acme/tiny'))"


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's HTTP that a download of a whole model uses. Asks for the token."""

    asked: ClassVar[list[str]] = []

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.headers.get("authorization") != "Bearer hf_secret":
            return self._send(401, b"{}", {})
        if self.path.startswith("/api/models/acme/tiny"):
            if "/tree/" in self.path:
                tree = [{"type": "file", "path": name, "size": len(data), "oid": "1"} for name, data in FILES.items()]
                return self._send(200, json.dumps(tree).encode(), {})
            said = {"id": "acme/tiny", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]}
            return self._send(200, json.dumps(said).encode(), {})
        name = self.path.rpartition("/")[2].partition("?")[0]
        return self._send(200, FILES[name], {"x-repo-commit": COMMIT, "etag": f'"{name}"'})

    do_HEAD = do_GET

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body)), "content-type": "application/json"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def ask(directory: Path, code: str = ASK, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(directory / "hf"), "HF_HUB_DISABLE_XET": "1", **env}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory, timeout=600)


def test_a_name_is_fetched_once_and_without_the_hub_the_remedy_is_reported(hub: str, tmp_path: Path) -> None:
    fetched = ask(tmp_path, HF_ENDPOINT=hub, HF_TOKEN="hf_secret")
    assert fetched.returncode == 0, fetched.stderr[-2000:]
    directory, name = fetched.stdout.split()
    assert (name, sorted(path.name for path in Path(directory).iterdir())) == (
        "tiny",
        ["config.json", "model.safetensors"],
    )
    assert len(Hub.asked) > 2
    assert all(path.startswith(("/api/models/acme/tiny", "/acme/tiny/resolve/")) for path in Hub.asked)
    assert any("/resolve/" in path and "model.safetensors" in path for path in Hub.asked)
    again = ask(tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="1")
    assert again.stdout == fetched.stdout
    serve = "import sys; sys.argv[1:] = ['serve', '--base-model', 'acme/tiny', '--port', '0']; "
    shown = ask(
        tmp_path / "..",
        serve + "from arttrace.commands import main; main()",
        HF_HUB_OFFLINE="1",
        HF_HOME=str(tmp_path / "empty"),
    )
    assert shown.returncode == 1
    assert "hf download acme/tiny" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_without_weights_these_are_not_fetched(hub: str, tmp_path: Path) -> None:
    """A plan needs the shape and the tokens alone: a teacher of 70B was fetched for it. What is there of it then is no
    model yet."""
    fetched = ask(
        tmp_path, ASK.replace("'acme/tiny'", "'acme/tiny', weights=False"), HF_ENDPOINT=hub, HF_TOKEN="hf_secret"
    )
    assert fetched.returncode == 0, fetched.stderr[-2000:]
    assert [path.name for path in Path(fetched.stdout.split()[0]).iterdir()] == ["config.json"]
    assert not [path for path in Hub.asked if "safetensors" in path]
    offline = ask(tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="1")
    assert offline.returncode == 1
    assert "hf download acme/tiny" in offline.stderr
    whole = ask(tmp_path, HF_ENDPOINT=hub, HF_TOKEN="hf_secret")
    assert whole.returncode == 0, whole.stderr[-2000:]
    assert (Path(whole.stdout.split()[0]) / "model.safetensors").exists()


@pytest.mark.parametrize(("chosen", "off"), [({}, "True"), ({"HF_HUB_DISABLE_TELEMETRY": "0"}, "False")])
def test_nobody_hears_of_a_training(chosen: dict[str, str], off: str, tmp_path: Path) -> None:
    """transformers imports huggingface_hub, which reads the variable then, long before TRL would tell."""
    code = "import trainer.learner, huggingface_hub.constants as hub; print(hub.HF_HUB_DISABLE_TELEMETRY)"
    assert ask(tmp_path, code, **chosen).stdout.strip() == off


def test_what_loads_trl_keeps_no_program_it_starts_from_the_hub(tmp_path: Path) -> None:
    code = """
import os
from trainer.output.quiet import import_trl
for offline in ({}, {"HF_HUB_OFFLINE": "1"}):
    os.environ.update(offline)
    import_trl()
    print(os.environ.get("HF_HUB_OFFLINE"))
"""
    assert ask(tmp_path, code).stdout.split() == ["None", "1"]


def test_a_model_is_served_by_its_name_on_the_hub(hub: str, tmp_path: Path) -> None:
    environment = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "HF_ENDPOINT": hub}
    data = DataDir(tmp_path / "data")
    with engine_in_a_thread("tiny") as engine:
        options = ["--vllm-url", engine.url]
        with pytest.raises(ServingError, match="401 Unauthorized"):
            start_serving(data, Path("acme/tiny"), options=options, env={**environment, "HF_TOKEN": "hf_another"})
        named = {**environment, "HF_TOKEN": "hf_secret"}
        with start_serving(data, Path("acme/tiny"), options=options, env=named) as serving:
            assert serving.client().status().base_model == "tiny"
            assert serving.record.base_model.endswith(f"models--acme--tiny/snapshots/{COMMIT}")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("qwen-2.5-7b", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct"),
        ("Qwen-3-1.7B", "Qwen/Qwen3-1.7B"),
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3"),
        ("qwen-2.5-7b-coder", "qwen-2.5-7b-coder"),
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
    ],
)
def test_short_names_are_those_that_arts_users_write(given: str, named: str) -> None:
    assert hub_name(given) == named


@pytest.mark.parametrize("arguments", [["--method", "sft"], ["--daemon"]])
def test_training_takes_a_name_on_the_hub_with_nothing_served(hub: str, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "data").mkdir()
    with Store.open(DataDir(tmp_path / "data"), create=True):
        pass
    train = f"import sys; sys.argv[1:] = {['train', '--dir', 'data', '--base-model', 'acme/tiny', *arguments]}; "
    code = train + "from arttrace.commands import main; main()"
    shown = ask(tmp_path, code, HF_ENDPOINT=hub, HF_TOKEN="hf_secret")
    assert "acme/tiny is" not in shown.stderr
    assert "models--acme--tiny" in shown.stderr  # it came from the hub, and is not a complete model
    assert "Traceback" not in shown.stderr
    offline = ask(tmp_path, code, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "empty"))
    assert offline.returncode == 1
    assert "hf download acme/tiny" in offline.stderr


@pytest.mark.parametrize("command", [["train"], ["serve"], ["train", "--print-config"]])
def test_a_path_that_is_no_utf8_is_refused(tmp_path: Path, command: list[str]) -> None:
    model = tmp_path / "tin\udcff"
    model.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "arttrace", *command, "--dir", str(tmp_path / "d"), "--base-model", model],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "not UTF-8" in done.stderr
