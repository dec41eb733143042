"""`arttrace view --open`: the link that logs in is opened in the user's browser."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from simulated_agent import research_run

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.store.server.owner import hold_store
from arttrace.system.paths import DataDir

ARTTRACE = str(Path(sys.executable).with_name("arttrace"))


def test_the_browser_gets_the_link_that_logs_in(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("one"))
    opened = tmp_path / "opened"
    os.mkfifo(opened)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o700)
    command = [ARTTRACE, "view", "--open", "--port", "0", "--dir", str(tmp_path)]
    environment = os.environ | {"BROWSER": f"{browser} %s"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as viewer:
        assert viewer.stdout is not None
        try:
            said = viewer.stdout.readline()
            link = opened.read_text()
            assert said == f"viewer: {link}\n"
            with httpx.Client(follow_redirects=True, timeout=60) as client:
                assert "agent:run" in client.get(link).text
        finally:
            viewer.send_signal(signal.SIGTERM)
        viewer.wait(60)


def test_a_collectors_key_in_the_environment_is_not_the_viewers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arttrace.commands.inspect.view.Ending.run", lambda *_: None)
    with hold_store(DataDir(tmp_path / "there"), create=True) as there:
        owner = json.loads(there.data.owner.read_text())
        monkeypatch.setenv("ARTTRACE_API_KEY", owner["token"])
        monkeypatch.setenv("ARTTRACE_DIR", str(tmp_path / "here"))
        said = CliRunner().invoke(cli, ["view", "--url", owner["url"], "--port", "0"]).output
        assert re.fullmatch(r"viewer: http://127\.0\.0\.1:\d+/login\?key=\S{20,}\n", said)
        assert owner["token"] not in said
        monkeypatch.setenv("ARTTRACE_DIR", str(tmp_path / "own"))
        with Store.open(DataDir(tmp_path / "own"), create=True) as store:
            store.append(research_run("one"))
        said = CliRunner().invoke(cli, ["view", "--port", "0"]).output
        assert re.fullmatch(r"viewer: http://127\.0\.0\.1:\d+/login\?key=\S{20,}\n", said)
        (tmp_path / "key").write_text("mine-for-long")
        arguments = ["view", "--url", owner["url"], "--port", "0", "--api-key-file", str(tmp_path / "key")]
        said = CliRunner().invoke(cli, arguments).output
        assert re.fullmatch(r"viewer: http://127\.0\.0\.1:\d+/login\?key=KEY, with its key\n", said)
