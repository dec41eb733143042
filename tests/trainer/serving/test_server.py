"""`arttrace serve` as a process, before an engine that is already there: serving.json, refusals, the end of it all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from daemon_site import until
from reserved_port import reserved_port
from small_disk import only_root, small_disk
from stand_in_engine import StandInEngine, engine_in_a_thread, write_adapter

from arttrace.commands import cli
from arttrace.records.policy import PolicyStep
from arttrace.server import serve_arguments
from arttrace.store import Store, open_store
from arttrace.system.errors import ServingError
from arttrace.system.paths import DataDir
from trainer.daemon.state import DaemonState, write_state
from trainer.output.log import MAX_BYTES
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import GatewayClient, Serving, find_serving, start_serving
from trainer.step.version import finish_open_step


@pytest.fixture(scope="module")
def engine() -> Iterator[StandInEngine]:
    with engine_in_a_thread() as engine:
        yield engine


@pytest.fixture
def served(tmp_path: Path, base_model: Path, engine: StandInEngine) -> Iterator[Serving]:
    with start_serving(DataDir(tmp_path / "data"), base_model, options=["--vllm-url", engine.url]) as serving:
        yield serving


def arttrace(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from arttrace.commands import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})})


def called(*arguments: str) -> Result:
    """A command that needs no process of its own."""
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_it_serves_publishes_and_leaves_nothing(
    served: Serving, tmp_path: Path, base_model: Path, sent: signal.Signals
) -> None:
    data = DataDir(tmp_path / "data")
    record = find_serving(data)
    assert record is not None
    assert (record.policy, record.base_model, record.url) == ("policy", str(base_model), served.url)
    client = served.client()
    report = client.publish(1, write_adapter(tmp_path / "policy@1", b"w1"))
    assert (report.version, client.status().step) == ("policy@1", 1)
    assert "INFO    policy@0 -> policy@1\n" in (data.root / "logs" / "serve.log").read_text()
    with pytest.raises(ServingError, match="is no adapter"):
        client.publish(2, tmp_path / "nowhere")
    assert served.client_environment["OPENAI_BASE_URL"] == f"{served.url}/v1"

    second = arttrace("serve", "--base-model", str(base_model), "--dir", str(data.root), "--port", "0")
    assert second.returncode == 1
    assert f"already served at {served.url}" in second.stderr
    with pytest.raises(ServingError, match="already served"):
        start_serving(data, base_model)

    os.kill(record.pid, sent)
    deadline = time.monotonic() + 60
    while data.serving.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert find_serving(data) is None
    assert not data.serving.exists()
    with pytest.raises(ServingError, match="does not answer"):
        client.status()


@only_root
@pytest.mark.parametrize("left", [0, 16 << 10])
def test_a_full_disk_is_said_before_engines_are_started(tmp_path: Path, base_model: Path, left: int) -> None:
    """vLLM's start takes a minute, and its log a part of what is left."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, "size=2m"), reserved_port() as nobody:
        (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - left))
        no_engine = f"http://127.0.0.1:{nobody}"
        serve = ("serve", "--base-model", str(base_model), "--dir", str(disk / "data"), "--port", "0")
        ended = arttrace(*serve, "--vllm-url", no_engine)
        assert ended.returncode == 1
        assert ended.stderr.endswith(
            f"error: {disk / 'data'}: No space left on device\n"
            "Free disk space, then try again. What was stored before is not lost.\n"
        )
        assert shutil.disk_usage(disk).free >= left - (8 << 10)  # what was tried is given back


def test_as_many_requests_as_it_takes_have_files_where_a_shell_allows_few(tmp_path: Path, base_model: Path) -> None:
    """Two connections each; Linux allows a shell 1024 files, and a program more of its own will."""
    few, most = 150, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with engine_in_a_thread() as engine:
        engine.held = True
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
        try:
            serving = start_serving(DataDir(tmp_path / "data"), base_model, options=["--vllm-url", engine.url])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

        async def ask_all() -> list[int]:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=serving.url, limits=limits, timeout=300, trust_env=False) as client:
                body = {"model": "policy", "messages": []}
                asked = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for _ in range(few)]
                while len(engine.generations) < few and not any(one.done() for one in asked):
                    await asyncio.sleep(0.05)
                engine._server.get_loop().call_soon_threadsafe(engine.release.set)
                return [(await one).status_code for one in asked]

        with serving:
            assert set(asyncio.run(ask_all())) == {200}


def test_a_killed_server_is_no_obstacle_and_the_newest_version_comes_back(
    tmp_path: Path, base_model: Path, engine: StandInEngine
) -> None:
    data = DataDir(tmp_path / "data")
    logs = data.root / "logs"
    logs.mkdir(parents=True)
    for name in ("serve.log", "serve-output.log"):
        (logs / name).write_bytes(b"x" * MAX_BYTES)
    for step in (1, 2, 10):
        version = write_adapter(data.policies / "policy" / f"policy@{step}", b"w%d" % step)
        if step != 10:  # half written: without its manifest
            (version / "manifest.json").write_text("{}")
    options = ["--vllm-url", engine.url]
    with start_serving(data, base_model, options=options) as first:
        os.kill(first.record.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while find_serving(data) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert data.serving.exists()
    with start_serving(data, base_model, options=options) as again:
        assert again.client().status().current == "policy@2"
    assert [(logs / f"{name}.log.1").stat().st_size for name in ("serve", "serve-output")] == [MAX_BYTES] * 2
    assert "newest version: policy@2" in (logs / "serve.log").read_text(), "in a new file"


def test_a_version_made_for_another_base_model_is_not_served(
    tmp_path: Path, base_model: Path, engine: StandInEngine
) -> None:
    data = DataDir(tmp_path / "data")
    manifest = PolicyStep(policy="policy", step=1, adapter="", base_model="/models/Qwen3-0.6B", time_ns=1)
    weights = write_adapter(tmp_path / "w1", b"w1")
    Checkpoints(data.policies, "policy").write(
        1, lambda directory: shutil.copytree(weights, directory, dirs_exist_ok=True) and None, manifest
    )
    options = ["--vllm-url", engine.url]
    with pytest.raises(ServingError, match=f"policy@1 is a LoRA on /models/Qwen3-0.6B, not on {base_model}") as refused:
        start_serving(data, base_model, options=options)
    assert f"ln -s {base_model} /models/Qwen3-0.6B" in str(refused.value)
    with start_serving(data, base_model, options=[*options, "--version", "0"]) as serving:
        assert serving.client().status().current == "policy@0", "the base model itself can be served"


def test_an_older_version_is_served_again_at_once_and_after_a_restart(
    tmp_path: Path, base_model: Path, engine: StandInEngine
) -> None:
    data = DataDir(tmp_path / "data")

    def make(step: int) -> None:
        manifest = PolicyStep(policy="policy", step=step, adapter="", base_model=str(base_model), time_ns=step)
        weights = write_adapter(tmp_path / f"w{step}", b"w%d" % step)
        Checkpoints(data.policies, "policy").write(
            step, lambda directory: shutil.copytree(weights, directory, dirs_exist_ok=True) and None, manifest
        )

    for step in (1, 2, 3):
        make(step)
    options = ["--vllm-url", engine.url]
    with start_serving(data, base_model, options=options) as serving:
        assert serving.client().status().current == "policy@3"
        ran = called("policies", "--dir", str(data.root), "rollback", "policy@1")
        assert (ran.exit_code, f"policy@3 -> policy@1 at {serving.url}/v1" in ran.stdout) == (0, True), ran.exception
        assert serving.client().status().current == "policy@1"
        assert "INFO    policy@3 -> policy@1\n" in (data.root / "logs" / "serve.log").read_text()
        write_state(Checkpoints(data.policies, "policy").directory, DaemonState(policy="policy", step=3))
        shown = called("status", "--dir", str(data.root))
        assert f"policy@1 at {serving.url}/v1" in shown.stdout, "a daemon that published policy@3 is not asked"
        assert json.loads(called("status", "--dir", str(data.root), "--json").stdout)[0]["served"] == "policy@1"
        answer = httpx.post(f"{serving.url}/v1/chat/completions", json={"model": "policy:latest", "messages": []})
        assert answer.headers["x-arttrace-policy-version"] == "policy@1"
        missing = arttrace("policies", "--dir", str(data.root), "rollback", "policy@9")
        assert (missing.returncode, "no version policy@9" in missing.stderr) == (1, True)
    with start_serving(data, base_model, options=options) as serving:
        assert serving.client().status().current == "policy@1"
        assert (
            "rolled back to: policy@1 (newest: policy@3)" in Path(serving.record.log).with_name("serve.log").read_text()
        )
    with start_serving(data, base_model, options=[*options, "--version", "2"]) as serving:
        assert serving.client().status().current == "policy@2"
    with start_serving(data, base_model, options=[*options, "--version", "0"]) as serving:
        assert serving.client().status().current == "policy@0"
    with pytest.raises(ServingError, match="no version policy@9"):
        start_serving(data, base_model, options=[*options, "--version", "9"])
    ran = called("policies", "--dir", str(data.root), "rollback", "policy@0")
    assert "will begin with" in ran.stdout
    pruned = called("policies", "--dir", str(data.root), "prune", "policy", "--keep-best", "0", "--keep-latest", "1")
    assert "pruned: policy@1" in pruned.stdout
    with start_serving(data, base_model, options=options) as serving:
        assert serving.client().status().current == "policy@0"
    make(4)  # a newer version takes its place
    with start_serving(data, base_model, options=options) as serving:
        assert serving.client().status().current == "policy@4"
    checkpoints = Checkpoints(data.policies, "policy")
    with (
        start_serving(data, base_model, options=[*options, "--version", "2"]) as serving,
        Store.open(data, create=True) as store,
    ):
        finish_open_step(store, checkpoints, serving.client())  # as a training does that begins
        assert serving.client().status().current == "policy@2", "no training has made a newer one"
        make(5)
        finish_open_step(store, checkpoints, serving.client())
        assert serving.client().status().current == "policy@5"


def test_the_training_server_goes_on_in_its_checkpoints_and_says_which(
    tmp_path: Path, base_model: Path, engine: StandInEngine
) -> None:
    """`python -m arttrace.server` twice in one folder, killed and by Ctrl-C: version and open run are taken up."""
    write_adapter(tmp_path / "checkpoints" / "policies" / "policy" / "policy@3", b"w3")
    (tmp_path / "checkpoints" / "policies" / "policy" / "policy@3" / "manifest.json").write_text("{}")
    options = ["--model", str(base_model), "--vllm-url", engine.url, "--port", "0", "--json"]
    chat = {"model": "lora:latest", "messages": [], "art": {"trajectory_id": "run-7"}}
    for number in (signal.SIGKILL, signal.SIGINT):
        server = subprocess.Popen(
            [sys.executable, "-m", "arttrace.server", *options],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("ARTTRACE_")},
        )
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            url = json.loads(server.stdout.readline())["url"]
            assert httpx.get(f"{url}/arttrace/status").json()["current"] == "policy@3"
            assert (
                httpx.post(f"{url}/v1/chat/completions", json=chat).headers["x-arttrace-policy-version"] == "policy@3"
            )
            if number == signal.SIGKILL:
                assert httpx.post(f"{url}/arttrace/records").status_code == 200  # what came before is on the disk
            else:
                done = httpx.post(f"{url}/r/run-7/end")
                assert done.json() == {"trajectory": "run-7", "calls": 2, "already_ended": False}
            server.send_signal(number)
            said = server.communicate(timeout=120)[1]
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
        assert ("the latest checkpoint is policy@3" in said) == (number == signal.SIGINT), said
        assert "newest version: policy@3" in said
    with open_store(DataDir(tmp_path / "checkpoints"), create=True) as store:
        [run] = store.trajectories()
    assert (run.id, run.incomplete, len(run.calls)) == ("run-7", "", 2)


def test_ctrl_c_ends_it_cleanly(served: Serving, tmp_path: Path) -> None:
    os.kill(served.record.pid, signal.SIGINT)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            served.check()
        except ServingError:
            break
        time.sleep(0.02)
    assert not (tmp_path / "data" / "serving.json").exists()
    logs = tmp_path / "data" / "logs"
    assert "Traceback" not in (logs / "serve-output.log").read_text() + (logs / "serve.log").read_text()
    lines = (logs / "serve.log").read_text().splitlines()
    assert len(lines) == len(set(lines)) > 1, "each once"


def test_a_taken_port_is_named(base_model: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ran = arttrace("serve", "--base-model", str(base_model), "--dir", str(tmp_path / "d"), "--port", port)
    assert ran.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken" in ran.stderr
    assert "--port" in ran.stderr


def test_who_asks_while_it_starts_waits_and_the_port_is_taken(base_model: Path, tmp_path: Path) -> None:
    """As when a gateway is restarted under clients: they are refused only until Python is loaded."""
    with reserved_port() as port, engine_in_a_thread() as engine:
        engine.grow_cold()
        common = ["serve", "--base-model", str(base_model), "--port", str(port), "--vllm-url", engine.url, "--dir"]
        command = [sys.executable, "-c", "from arttrace.commands import main; main()", *common, str(tmp_path / "one")]
        with (tmp_path / "out").open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as starting:
            try:
                log = tmp_path / "one" / "logs" / "serve.log"
                until(lambda: log.exists() and "warming up" in log.read_text())
                socket.create_connection(("127.0.0.1", port)).close()
                with ThreadPoolExecutor(1) as thread:
                    url = f"http://127.0.0.1:{port}/v1/chat/completions"
                    asked = thread.submit(httpx.post, url, json={"model": "policy:latest", "messages": []}, timeout=300)
                    second = arttrace(*common, str(tmp_path / "two"))
                    engine.grow_warm()
                    assert asked.result().status_code == 200
                assert (second.returncode, f"port {port} on 127.0.0.1 is taken" in second.stderr) == (1, True)
            finally:
                starting.terminate()
        assert starting.returncode == 0


def test_others_are_let_in_only_with_a_token(base_model: Path, tmp_path: Path) -> None:
    ran = arttrace(
        "serve", "--base-model", str(base_model), "--dir", str(tmp_path / "d"), "--port", "0", "--host", "0.0.0.0"
    )
    assert ran.returncode == 1
    assert "--api-key-file" in ran.stderr


def test_a_missing_model_and_a_missing_engine_are_reported(base_model: Path, tmp_path: Path) -> None:
    ran = arttrace("serve", "--base-model", str(tmp_path / "nowhere"), "--dir", str(tmp_path / "d"))
    assert (ran.returncode, "no model directory" in ran.stderr) == (1, True)
    data = DataDir(tmp_path / "d")
    with engine_in_a_thread("another") as another, pytest.raises(ServingError, match="is not the expected") as refused:
        start_serving(data, base_model, options=["--vllm-url", another.url])
    assert "Traceback" not in str(refused.value) + (data.root / "logs" / "serve-output.log").read_text()


@pytest.mark.parametrize("what", ["model", "data"])
def test_a_directory_whose_name_is_no_utf_8_is_refused_at_once(base_model: Path, tmp_path: Path, what: str) -> None:
    """Neither serving.json nor a manifest could name it."""
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(base_model, odd)
    model, data = (odd, tmp_path / "data") if what == "model" else (base_model, odd)
    ran = arttrace("serve", "--base-model", str(model), "--dir", str(data), "--vllm-url", "http://127.0.0.1:9")
    assert ran.returncode == 1
    assert re.search(r"^error: the name of the directory '.*/caf\\udce9' is not UTF-8$", ran.stderr, re.MULTILINE)


def test_a_card_that_is_asked_for_and_missing_is_reported_at_once(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.gateway.engines.vllm.engine.serves_on_cpu", lambda: True)
    asked = serve_arguments(["--gpu", "--dir", str(tmp_path / "d")], {"MODEL": str(base_model)})
    with pytest.raises(ServingError, match="there is no CUDA card") as ran:
        cli.main(asked, standalone_mode=False)
    assert "leave --gpu out" in str(ran.value.hint)
    assert not (tmp_path / "d").exists()


def test_the_token_is_asked_for(base_model: Path, tmp_path: Path, engine: StandInEngine) -> None:
    options = ["--vllm-url", engine.url, "--host", "0.0.0.0"]
    with start_serving(DataDir(tmp_path / "d"), base_model, options=options, env={"ARTTRACE_API_KEY": "k"}) as serving:
        assert serving.url.startswith("http://127.0.0.1:")
        assert httpx.get(f"{serving.url}/v1/models").status_code == 401
        with pytest.raises(ServingError, match="key"):
            GatewayClient(serving.url).status()
        assert GatewayClient(serving.url, api_key="k").status().step == 0


def test_a_key_from_a_file_is_asked_for_and_no_command_line_shows_it(
    base_model: Path, tmp_path: Path, engine: StandInEngine
) -> None:
    key = tmp_path / "key"
    key.write_text("geheim-123\n")
    options = ["--vllm-url", engine.url, "--api-key-file", str(key)]
    with start_serving(DataDir(tmp_path / "d"), base_model, options=options) as serving:
        assert httpx.get(f"{serving.url}/v1/models").status_code == 401
        assert GatewayClient(serving.url, api_key="geheim-123").status().step == 0
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                assert b"geheim-123" not in (process / "cmdline").read_bytes()
    for content, cause in (("", "is empty"), ("a\nb", "more than one line"), ("schlüssel", "printable ASCII")):
        key.write_text(content)
        ran = arttrace("serve", "--base-model", str(base_model), "--dir", str(tmp_path / "d"), *options)
        assert (ran.returncode, cause in ran.stderr) == (1, True), ran.stderr


def test_a_damaged_version_ends_it_with_the_cause(base_model: Path, tmp_path: Path, engine: StandInEngine) -> None:
    data = DataDir(tmp_path / "data")
    version = write_adapter(data.policies / "policy" / "policy@1", b"w1")
    (version / "manifest.json").write_text("{}")
    (version / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]")
    ran = arttrace(
        "serve", "--base-model", str(base_model), "--dir", str(data.root), "--port", "0", "--vllm-url", engine.url
    )
    assert ran.returncode == 1
    assert "adapter_model.safetensors is damaged" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_engine_that_outlives_servers_is_not_asked_for_what_an_earlier_one_gave_it(
    tmp_path: Path, base_model: Path, engine: StandInEngine
) -> None:
    """Training begun anew in the same directory gives other weights the same name and place."""
    data, changes = DataDir(tmp_path / "d"), []
    for weights in (b"w1", b"w2", b"w1"):
        with start_serving(data, base_model, options=["--vllm-url", engine.url]) as serving:
            made = write_adapter(data.policies / "made", weights)
            changes.append(serving.client().publish(1, made).max_logprob_change)
            chat = {"model": "policy", "messages": []}
            said = httpx.post(f"{serving.url}/v1/chat/completions", json=chat).json()["model"]
            again = httpx.post(f"{serving.url}/v1/chat/completions", json={**chat, "model": said})
            assert (again.json()["model"], again.headers["x-arttrace-policy-version"]) == (said, "policy@1")
        shutil.rmtree(data.root)
    assert changes[0] == changes[2] != changes[1]


@pytest.mark.skipif(sys.platform != "linux", reason="which file is synced is read from /proc")
def test_who_publishes_waits_for_no_disk_on_account_of_serving_json(
    tmp_path: Path, base_model: Path, engine: StandInEngine
) -> None:
    """It says nothing once its process is gone; the disk took 11 ms for it, as long as the engine for an adapter."""
    synced = tmp_path / "synced"
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nreal = os.fsync\ndef fsync(fd):\n"
        f"    with open({str(synced)!r}, 'a') as log:\n"
        "        log.write(os.readlink(f'/proc/self/fd/{fd}') + '\\n')\n"
        "    real(fd)\nos.fsync = fsync\nos.fsync(os.open('.', os.O_RDONLY))\n"
    )
    data = DataDir(tmp_path / "d")
    with start_serving(
        data, base_model, options=["--vllm-url", engine.url], env={"PYTHONPATH": str(tmp_path)}
    ) as serving:
        serving.client().publish(1, write_adapter(tmp_path / "1", b"w1"))
        assert json.loads(data.serving.read_bytes())["version"] == "policy@1"
    assert synced.read_text()
    assert "serving.json" not in synced.read_text()


def test_an_engine_that_goes_away_is_left_out_and_taken_back_with_the_current_version(
    tmp_path: Path, base_model: Path, engine: StandInEngine
) -> None:
    def until(states: list[str], client: GatewayClient) -> None:
        deadline = time.monotonic() + 60
        while (found := [each.state for each in client.status().replicas]) != states:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    with contextlib.ExitStack() as second:
        other = second.enter_context(engine_in_a_thread())
        options = ["--vllm-url", engine.url, "--vllm-url", other.url]
        with start_serving(DataDir(tmp_path / "d"), base_model, options=options) as serving:
            client = serving.client()
            chat = {"model": "policy:latest", "messages": []}
            client.publish(1, write_adapter(tmp_path / "1", b"w1"))
            assert [name.partition("+")[0] for name in other.adapters] == ["policy@1"]
            second.close()
            until(["ready", "lost"], client)
            report = client.publish(2, write_adapter(tmp_path / "2", b"w2"))
            assert report.max_logprob_change > 0
            for _ in range(4):
                answer = httpx.post(f"{serving.url}/v1/chat/completions", json=chat)
                assert (answer.status_code, answer.headers["x-arttrace-policy-version"]) == (200, "policy@2")
            with engine_in_a_thread(port=int(other.url.rsplit(":", 1)[1])) as back:
                until(["ready", "ready"], client)
                assert [name.partition("+")[0] for name in back.adapters] == ["policy@2"]
