"""The container files, as far as they can be read without a daemon: paths exist, and command lines parse."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from collector_process import collecting
from doc_blocks import ROOT
from gateway_site import gateway_at

from arttrace.commands import cli
from arttrace.server import serve_arguments
from arttrace.system.paths import DataDir

FILES = ("Dockerfile", "Dockerfile.collector")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SKYPILOT = yaml.safe_load((ROOT / "examples" / "skypilot" / "server.yaml").read_text())


def instructions(file: str) -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / file).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in text.splitlines() if line.strip()]


def parse(command: Sequence[str], environment: dict[str, str]) -> click.Context:
    """The context of the subcommand that a container would run."""
    program, *given = command
    arguments = serve_arguments(given, environment) if program == "art-server" else given
    assert program in ("arttrace", "art-server")
    name, *options = arguments
    subcommand = cli.get_command(click.Context(cli), name)
    assert subcommand is not None
    return subcommand.make_context(name, list(options))


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for file in FILES:
        copied = [word for name, rest in instructions(file) if name == "COPY" for word in rest.split()[:-1]]
        assert copied
        for path in copied:
            assert (ROOT / path).exists(), path
            assert path in kept, path
    pinned = {path for path in kept if not (ROOT / path).exists()}
    assert not pinned


@pytest.mark.parametrize("file", FILES)
def test_an_image_is_not_root_and_tells_its_health(file: str) -> None:
    said = dict(instructions(file))
    assert said["USER"] == "10001"
    *_, probe = json.loads(said["HEALTHCHECK"].partition("CMD ")[2])
    compile(probe, file, "exec")
    assert f":{said['EXPOSE']}/" in probe


def health(file: str, url: str) -> int:
    """The exit code of an image's probe, asked of a server elsewhere, where Docker sets the proxy of its own machine."""
    said = dict(instructions(file))
    *command, probe = json.loads(said["HEALTHCHECK"].partition("CMD ")[2])
    assert command == ["python", "-c"]
    there = probe.replace(f"http://127.0.0.1:{said['EXPOSE']}", url.rstrip("/"))
    assert there != probe
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    probing = [sys.executable, "-c", there]
    return subprocess.run(probing, env=environment, capture_output=True, timeout=60, check=False).returncode


def test_the_probe_of_the_collector_finds_it_healthy_without_a_key(tmp_path: Path) -> None:
    with collecting(DataDir(tmp_path), ARTTRACE_API_KEY="secret") as (_, url):
        until = time.monotonic() + 60  # it takes in first what an earlier process left
        while health("Dockerfile.collector", url) and time.monotonic() < until:
            time.sleep(0.05)
        assert health("Dockerfile.collector", url) == 0
    assert health("Dockerfile.collector", url) == 1


async def test_the_probe_of_the_server_finds_it_healthy_without_a_key(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, api_key="secret") as site:
        assert await asyncio.to_thread(health, "Dockerfile", str(site.http.base_url)) == 0
    assert await asyncio.to_thread(health, "Dockerfile", str(site.http.base_url)) == 1


def test_the_server_needs_no_flag_but_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = dict(instructions("Dockerfile"))
    assert said["EXPOSE"] == "8000"
    context = parse(json.loads(said["ENTRYPOINT"]), {"MODEL": "Qwen/Qwen2.5-7B-Instruct"})
    asked = {"base_model_given": "Qwen/Qwen2.5-7B-Instruct", "port": 8000, "host": "0.0.0.0", "while_training": "block"}
    assert asked.items() <= context.params.items()
    assert context.params["data"].root == tmp_path / "checkpoints"
    with pytest.raises(click.MissingParameter) as missing:
        parse(json.loads(said["ENTRYPOINT"]), {})
    assert "--model" in missing.value.format_message()
    context = parse(json.loads(dict(instructions("Dockerfile.collector"))["CMD"]), {})
    assert (context.params["host"], context.params["port"]) == ("0.0.0.0", 4318)


def test_what_is_given_counts_before_the_environment_and_the_defaults(tmp_path: Path) -> None:
    given = ["--model", "b", "--policy", "two", "--train", "overlap", "--dir", str(tmp_path)]
    context = parse(["art-server", *given], {"MODEL": "a", "POLICY": "one", "ARTTRACE_DIR": ""})
    params = context.params
    assert (params["base_model_given"], params["policy"], params["while_training"]) == ("b", "two", "overlap")
    assert params["data"].root == tmp_path


def test_the_services_of_compose_start_what_there_is() -> None:
    services: dict[str, dict[str, Any]] = COMPOSE["services"]
    working = {"collector", "server", "trainer"}
    assert set(services) == working | {"pause"}
    for name, service in services.items():
        build = service["build"]
        assert (ROOT / (build if isinstance(build, str) else build["dockerfile"])).exists()
        if "entrypoint" in service:
            words = [re.sub(r"\$\{MODEL:\?[^}]*\}", "some-model", word) for word in service["entrypoint"]]
            parse(words, {})
        assert {volume.partition(":")[0] for volume in service.get("volumes", ())} <= COMPOSE["volumes"].keys(), name
        assert set(service.get("depends_on", ())) <= services.keys()
    [_, *probe] = services["trainer"]["healthcheck"]["test"]
    assert parse(probe, {}).params["check"], "it is healthy as long as a file is there"
    shared = {services[name][field] for name in working for field in ("pid", "network_mode")}
    assert shared == {"service:pause"}, "the end of one service would end others"


def test_the_task_of_skypilot_starts_the_server() -> None:
    *_, last = SKYPILOT["run"].strip().splitlines()
    context = parse(shlex.split(last.partition("exec ")[2]), SKYPILOT["envs"])
    assert context.params["host"] == "127.0.0.1"
    for path in re.findall(r"requirements/\S+", SKYPILOT["setup"]):
        assert (ROOT / path).is_file()
