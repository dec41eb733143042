"""`arttrace run --policy` with programs that are not Python: each is one run of the gateway, ended with the program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import forked_arttrace
import pytest
from gateway_site import Site
from http_site import serving

from arttrace.records.trajectory import Trajectory
from arttrace.store import open_store
from arttrace.system.paths import DataDir

ARTTRACE = [sys.executable, "-c", "from arttrace.commands import main; main()"]
IN_A_FORK: list[Path] = []
"""The same for a program that no signal reaches."""

AGENT = r"""#!/bin/bash
# One POST by hand, to the base URL that the environment names.
base=${!1}; path=$2; rest=${base#http://}; host=${rest%%/*}; root=/${rest#*/}
[ "$root" = "/$rest" ] && root=""
body='{"model": "'$OPENAI_MODEL'", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}'
exec 3<>/dev/tcp/${host%:*}/${host#*:}
printf 'POST %s%s HTTP/1.1\r\nhost: %s\r\nauthorization: Bearer %s\r\nconnection: close\r\n' \
  "$root" "$path" "$host" "$OPENAI_API_KEY" >&3
printf 'content-type: application/json\r\ncontent-length: %s\r\n\r\n%s' "${#body}" "$body" >&3
head -n 1 <&3
echo "$ANTHROPIC_API_KEY|$ANTHROPIC_MODEL"
[ "$3" = kill ] && kill -s "$4" $$
[ "$3" = wait ] && { trap 'exit 9' TERM INT; touch "$4"; while :; do sleep 0.1; done; }
exit ${3:-0}
"""
REWARDED = r"""#!/bin/bash
rest=${ANTHROPIC_BASE_URL#http://}; host=${rest%%/*}
post() {
  exec 3<>/dev/tcp/${host%:*}/${host#*:}
  printf 'POST /%s%s HTTP/1.1\r\nhost: %s\r\nauthorization: Bearer %s\r\nconnection: close\r\n' \
    "${rest#*/}" "$1" "$host" "$OPENAI_API_KEY" >&3
  printf 'content-type: application/json\r\ncontent-length: %s\r\n\r\n%s' "${#2}" "$2" >&3
  head -n 1 <&3
}
post /v1/chat/completions '{"model": "policy:latest", "messages": [{"role": "user", "content": "hi"}]}'
post "$1" "$2"
exit 3
"""
MESSAGE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]}


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "agent"
    path.write_text(AGENT)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module", autouse=True)
def _forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with forked_arttrace.on_path(tmp_path_factory.mktemp("forks")) as folder:
        IN_A_FORK[:] = [folder / "arttrace"]
        yield


async def started(
    site: Site, *arguments: object, url: str | None = None, alone: bool = False
) -> asyncio.subprocess.Process:
    """In a process group of its own, as a shell starts it, where it is `alone`."""
    policy = f"{str(site.http.base_url).rstrip('/')}/v1" if url is None else url
    environment = {**os.environ, "ANTHROPIC_API_KEY": "sk-ant-of-the-user", "ARTTRACE_POLICY_API_KEY": "secret"}
    return await asyncio.create_subprocess_exec(
        *(ARTTRACE if alone else IN_A_FORK), "run", "--dir", str(site.directory / "d"),
        *(["--policy", policy] if policy else []), "--", *map(str, arguments),
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        process_group=0,
    )  # fmt: skip


def recorded(site: Site) -> Trajectory:
    site.gateway.recorder.close()
    with open_store(DataDir(site.directory), create=True) as store:
        (run,) = store.trajectories()
    return run


@pytest.mark.parametrize("site", ["secret"], indirect=True)
@pytest.mark.parametrize(
    ("variable", "path"), [("OPENAI_BASE_URL", "/chat/completions"), ("ANTHROPIC_BASE_URL", "/v1/messages")]
)
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (0, None),
        (3, "the program ended with exit code 3"),
        (
            137,
            "the program ended with exit code 137, signal SIGKILL: killed from outside, which usually means that the "
            "machine ran out of memory",
        ),
    ],
)
async def test_a_program_is_one_run_that_ends_with_it(
    site: Site, agent: Path, variable: str, path: str, code: int, error: str | None
) -> None:
    site.engine.scripted.append((200, "application/json", json.dumps(MESSAGE).encode()))
    program = await started(site, agent, variable, path, code)
    out, said = await program.communicate()
    assert (program.returncode, out.decode()) == (code, "HTTP/1.1 200 OK\r\n|policy:latest\n"), said.decode()
    run = recorded(site)
    assert said.decode() == f"arttrace: 1 model call of agent recorded as run {run.id}\n"
    assert (run.entry, run.incomplete, len(run.calls)) == ("agent", "", 1)
    assert run.metadata == {"exit_code": code}
    assert run.error == error


@pytest.mark.parametrize("site", ["secret"], indirect=True)
@pytest.mark.parametrize(
    ("path", "order", "ending"),
    [
        ("/reward", '{"value": 0.5}', ""),
        ("/end", '{"reward": 0.5}', ", which it ended itself: that it ended with exit code 3 is not in it"),
    ],
)
async def test_a_program_rewards_its_run(site: Site, agent: Path, path: str, order: str, ending: str) -> None:
    agent.write_text(REWARDED)
    site.engine.scripted.append((200, "application/json", json.dumps(MESSAGE).encode()))
    program = await started(site, agent, path, order)
    out, said = await program.communicate()
    assert (program.returncode, out.decode()) == (3, "HTTP/1.1 200 OK\r\n" * 2), said.decode()
    run = recorded(site)
    assert said.decode() == f"arttrace: 1 model call of agent recorded as run {run.id}{ending}\n"
    assert (run.incomplete, [one.value for one in run.rewards]) == ("", [0.5])
    assert run.error == (None if ending else "the program ended with exit code 3")


@pytest.mark.parametrize("site", ["secret"], indirect=True)
@pytest.mark.parametrize("by", ["kill", "Ctrl-C"])
async def test_a_signal_reaches_the_program_and_its_run_is_ended(site: Site, agent: Path, by: str) -> None:
    """A terminal sends Ctrl-C to both."""
    site.engine.scripted.append((200, "application/json", json.dumps(MESSAGE).encode()))
    waits = site.directory / "waits"
    # Where this process ignores SIGINT, as jobs of a shell's background do, so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        program = await started(site, agent, "OPENAI_BASE_URL", "/chat/completions", "wait", waits, alone=True)
    finally:
        signal.signal(signal.SIGINT, before)
    async with asyncio.timeout(120):
        while not waits.exists():
            await asyncio.sleep(0.02)
        if by == "kill":
            program.send_signal(signal.SIGTERM)
        else:
            os.killpg(program.pid, signal.SIGINT)
        _, said = await program.communicate()
    assert program.returncode == 9, said.decode()
    assert recorded(site).metadata == {"exit_code": 9}


@pytest.mark.parametrize("site", ["secret"], indirect=True)
@pytest.mark.parametrize(("name", "code"), [("KILL", 137), ("SEGV", 139)])
async def test_the_run_of_a_program_that_is_killed_is_ended(site: Site, agent: Path, name: str, code: int) -> None:
    site.engine.scripted.append((200, "application/json", json.dumps(MESSAGE).encode()))
    program = await started(site, agent, "ANTHROPIC_BASE_URL", "/v1/messages", "kill", name)
    _, said = await program.communicate()
    assert program.returncode == code, said.decode()
    run = recorded(site)
    assert (run.incomplete, len(run.calls), run.metadata) == ("", 1, {"exit_code": code})
    assert f"signal SIG{name}" in str(run.error)


@pytest.mark.parametrize("site", ["secret"], indirect=True)
async def test_clients_of_either_kind_find_the_gateway_the_policy_and_a_key(site: Site) -> None:
    program = await started(site, "env")
    out, said = await program.communicate()
    found = dict(line.partition("=")[::2] for line in out.decode().splitlines())
    url = found["ANTHROPIC_BASE_URL"]
    assert url.startswith(f"{str(site.http.base_url).rstrip('/')}/r/"), said.decode()
    assert {found["OPENAI_BASE_URL"], found["OPENAI_API_BASE"]} == {f"{url}/v1"}
    assert {found["OPENAI_API_KEY"], found["ANTHROPIC_AUTH_TOKEN"]} == {"secret"}
    assert "ANTHROPIC_API_KEY" not in found, "the user's own, which goes before the token"
    models = ("MODEL", "SMALL_FAST_MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    of_claude = [f"ANTHROPIC_{one}" for one in models]
    named = {found[name] for name in ("OPENAI_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL", *of_claude)}
    assert named == {"policy:latest"}


@pytest.mark.parametrize("site", ["secret"], indirect=True)
async def test_who_asks_nobody_is_said(site: Site) -> None:
    program = await started(site, "true")
    _, said = await program.communicate()
    assert program.returncode == 0
    assert "no model call of true itself reached the gateway" in said.decode()


@pytest.mark.parametrize("site", ["secret"], indirect=True)
async def test_a_program_makes_its_files_as_its_user_does(site: Site) -> None:
    before = os.umask(0o022)
    try:
        program = await started(site, "sh", "-c", "umask", alone=True)
    finally:
        os.umask(before)
    out, _ = await program.communicate()
    assert out == b"0022\n"


@pytest.mark.parametrize("recorded", [True, False])
async def test_what_the_system_cannot_execute_is_said(site: Site, agent: Path, recorded: bool) -> None:
    agent.write_text("echo ran\n")
    program = await started(site, agent, url=None if recorded else "")
    out, said = await program.communicate()
    assert (program.returncode, out) == (1, b"")
    assert f"error: {agent} cannot be started: Exec format error" in said.decode()
    assert f"arttrace run -- sh {agent}" in said.decode()
    assert "Traceback" not in said.decode()


@pytest.mark.parametrize("command", [("echo", "ran"), ("sh", "-c", "echo ran")])
async def test_without_a_gateway_the_program_is_not_started(site: Site, command: tuple[str, ...]) -> None:
    """It would ask its own provider in the place of the policy, and nothing would be recorded."""
    program = await started(site, *command, url="http://user:word@127.0.0.1:9/v1")
    out, said = await program.communicate()
    assert (program.returncode, out) == (1, b"")
    assert f"{command[0]} was not started, as no gateway records it at 127.0.0.1:9: " in said.decode()
    assert "Start `arttrace serve`" in said.decode()


@pytest.mark.parametrize("site", ["other"], indirect=True)
async def test_another_key_is_said(site: Site) -> None:
    program = await started(site, "echo", "ran")
    out, said = await program.communicate()
    assert (program.returncode, out) == (1, b"")
    assert "it asks for another key than $ARTTRACE_POLICY_API_KEY\nSet ARTTRACE_POLICY_API_KEY" in said.decode()


async def test_at_another_server_only_what_starts_python_programs_is_started(site: Site) -> None:
    with serving() as other:
        url = other.url
        refused, ran = [await started(site, *one, url=url) for one in (["echo", "ran"], ["sh", "-c", "echo ran"])]
        (out, said), (out_of_sh, said_of_sh) = await refused.communicate(), await ran.communicate()
    assert (refused.returncode, out, ran.returncode, out_of_sh) == (1, b"", 0, b"ran\n")
    for one in (said, said_of_sh):
        assert "what answers (200) is not `arttrace serve`" in one.decode()
    assert "only Python programs are captured" in said_of_sh.decode()
