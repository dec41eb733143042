"""`arttrace view --open`: the link that logs in is opened in the user's browser."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from simulated_agent import research_run

from arttrace.store import Store
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
