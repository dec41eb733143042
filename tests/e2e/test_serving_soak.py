"""Hundreds of versions under load, before the stand-in engine: the gateway grows neither in memory nor in files."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import httpx
import psutil
import pytest
from stand_in_engine import engine_in_a_thread, write_adapter

from arttrace.store import open_store
from arttrace.system.paths import DataDir
from trainer.serving import start_serving

pytestmark = [pytest.mark.e2e, pytest.mark.full]

VERSIONS, CALLERS, WARM_UP = 500, 4, 50


class Callers:
    """Agents that call without pause, each run of theirs three calls long."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stop = threading.Event()
        self.failures: list[str] = []
        self.runs = 0
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def _call(self, number: int) -> None:
        body = {"model": "policy:latest", "messages": [{"role": "user", "content": "x" * 2000}]}
        with httpx.Client(base_url=self.url, timeout=60) as http:
            run = 0
            while not self.stop.is_set():
                name = f"/r/{number}-{run}"
                for path in ("/v1/chat/completions", "/v1/chat/completions", "/sub/v1/chat/completions"):
                    answer = http.post(name + path, json=body)
                    if answer.status_code != 200 or not answer.headers["x-arttrace-policy-version"]:
                        self.failures.append(answer.text)
                http.post(f"{name}/end", json={"reward": 1.0}).raise_for_status()
                run += 1
                self.runs += 1

    def join(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()


def test_hundreds_of_versions_leave_nothing_behind(tmp_path: Path) -> None:
    base_model = tmp_path / "base"
    base_model.mkdir()
    shape = {"vocab_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    (base_model / "config.json").write_text(json.dumps(shape))
    data = DataDir(tmp_path / "data")
    sizes: list[int] = []
    files: list[int] = []
    with engine_in_a_thread() as engine:
        with start_serving(data, base_model, options=["--vllm-url", engine.url]) as serving:
            server = psutil.Process(serving.record.pid)
            client = serving.client()
            callers = Callers(serving.url)
            try:
                for step in range(1, VERSIONS + 1):
                    path = write_adapter(tmp_path / f"{step}", os.urandom(64))
                    assert client.publish(step, path).version == f"policy@{step}"
                    engine.generations.clear()
                    if step >= WARM_UP and step % 10 == 0:
                        sizes.append(server.memory_info().rss)
                        files.append(server.num_fds())
            finally:
                callers.join()
            assert callers.failures == []
            assert list(engine.adapters)[-1].startswith(f"policy@{VERSIONS}+")
            assert len(engine.adapters) <= 2
            assert len(client.status().requests) <= 3
            assert client.status().recording is not None
            assert client.status().recording.refused == 0
            assert server.children() == []
            early = max(sizes[: len(sizes) // 5])
            print(
                f"{VERSIONS} versions, {callers.runs} runs: {early >> 20} MiB at a fifth, {sizes[-1] >> 20} MiB at the "
                f"end; files {max(files[: len(files) // 5])}, then {files[-1]}"
            )
            assert sizes[-1] <= 1.1 * early
            assert files[-1] <= max(files[: len(files) // 5]) + CALLERS
        port = int(serving.url.rsplit(":", 1)[1])
        assert not psutil.pid_exists(serving.record.pid)
        assert all(each.laddr.port != port for each in psutil.net_connections("tcp") if each.status == "LISTEN")
        assert not data.serving.exists()
        leftover = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        assert str(data.root) not in leftover
    with open_store(data, create=True) as store:
        summaries = store.summaries()
    assert len(summaries) == callers.runs
    assert {(each.incomplete, each.calls) for each in summaries} == {("", 3)}
