"""`arttrace run` where a process is started badly: with closed standard streams, or in a directory that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_server import ChatServer, serve
from spool import read_spans

ARTTRACE = [sys.executable, "-c", "from arttrace.commands import main; main()"]
AGENT = """
import sys
from openai import OpenAI
answer = OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": "plan"}])
print(answer.choices[0].message.content)
sys.exit(7)
"""


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serve() as running:
        yield running


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return path


@pytest.mark.skipif(os.name != "posix", reason="the shell closes them")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_stay_so(closed: str, tmp_path: Path, agent: Path, server: ChatServer) -> None:
    started = [*ARTTRACE, "run", "--dir", "data", "--", sys.executable, "agent.py"]
    env = {**os.environ, "OPENAI_API_KEY": "sk-test-key-1234", "OPENAI_BASE_URL": server.url}
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *started]
    done = subprocess.run(shell, cwd=tmp_path, env=env, timeout=300)
    assert done.returncode == 7
    assert len(read_spans(tmp_path / "data")) == 2


def test_a_program_in_a_directory_that_is_gone_is_captured_and_nothing_is_printed_of_it(
    tmp_path: Path, agent: Path, server: ChatServer
) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = True\n")
    agent.write_text(AGENT.replace("sys.exit(7)", "sys.exit(7 if theirs else 0)"))
    started = [*ARTTRACE, "run", "--quiet", "--dir", str(tmp_path / "data"), "--", sys.executable, str(agent)]
    env = {**os.environ, "OPENAI_API_KEY": "sk-test-key-1234", "OPENAI_BASE_URL": server.url}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    shell = ["sh", "-c", 'cd gone && rmdir ../gone && exec "$@"', "sh", *started]
    done = subprocess.run(shell, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (7, "")
    assert len(read_spans(tmp_path / "data")) == 2
