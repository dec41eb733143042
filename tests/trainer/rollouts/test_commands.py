"""`arttrace rollout -- PROGRAM`: commands in any language as rollouts, each in its own copy of a directory.

The gateway is real, before a stand-in for its engine; the programs are shell scripts and Python.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gateway_site import Site, gateway_at

from arttrace.records.trajectory import Trajectory
from arttrace.store import open_store
from arttrace.system.errors import RolloutError
from arttrace.system.paths import DataDir
from trainer.commands.rollout import command
from trainer.rollouts.command_inputs import command_inputs
from trainer.rollouts.report import ENDED_ITSELF

AGENT = r"""#!/bin/bash
rest=${OPENAI_BASE_URL#http://}; host=${rest%%/*}; run=/${rest#*/}
post() {
  exec 3<>/dev/tcp/${host%:*}/${host#*:}
  printf 'POST %s HTTP/1.1\r\nhost: %s\r\nauthorization: Bearer %s\r\nconnection: close\r\n' \
    "${run%/v1}$1" "$host" "$OPENAI_API_KEY" >&3
  printf 'content-type: application/json\r\ncontent-length: %s\r\n\r\n%s' "${#2}" "$2" >&3
  head -n 1 <&3
}
[ "$1" = silent ] && exit 0
post /v1/chat/completions '{"model": "'$OPENAI_MODEL'", "messages": [{"role": "user", "content": "'"$1"'"}]}'
ls -A > "$2/run-$$.listing"
cat notes.txt; [ -e made ] && echo "somebody was here"; echo "$1" > made
[ "$1" = end ] && { post /end '{"reward": 1.0}'; exit 0; }
[ "$1" = slow ] && sleep 600
post /reward '{"value": 0.5}'
[ "$1" = fail ] && exit 3
exit 0
"""
MESSAGE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]}
PYTHON = """
import sys, arttrace, openai
print(openai.OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": sys.argv[1]}]))
arttrace.reward(0.25)
"""
BY_HTTP = """
import os, sys, arttrace, httpx2

def agent(task):
    asked = {"model": "m", "messages": [{"role": "user", "content": task}]}
    url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1") + "/chat/completions"
    key = {"authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "k")}
    httpx2.post(url, json=asked, headers=key, trust_env=False).raise_for_status()
    arttrace.reward(0.25)
"""
"""What a program in Python does without openai, whose import takes longer than all else that it does."""
UNDECORATED = f"{BY_HTTP}\nagent(sys.argv[1])\n"
DECORATED = f"{BY_HTTP}\narttrace.trajectory(tags=['own'], group='mine')(agent)(sys.argv[1])\n"
IN_TWO_STEPS = """
import subprocess, sys
sys.exit(subprocess.call(sys.argv[1:]))
"""
OF_AGENT_LIGHTNING = """
import asyncio, os, sys
import arttrace, httpx2

class ChatAgent:
    async def run(self):
        url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1") + "/chat/completions"
        asked = {"model": "auto", "messages": [{"role": "user", "content": os.environ["QUESTION"]}]}
        async with httpx2.AsyncClient(trust_env=False) as client:
            response = await client.post(url, json=asked, headers={"authorization": "Bearer k"})
        answer = response.raise_for_status().json()["choices"][0]["message"]["content"]
        arttrace.reward(1.0 if answer == os.environ["ANSWER"] else 0.0)

os.environ["QUESTION"], os.environ["ANSWER"] = sys.argv[1:]
asyncio.run(ChatAgent().run())
"""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with gateway_at(tmp_path / "data", api_key="secret") as site:
        site.engine.scripted += [(200, "application/json", json.dumps(MESSAGE).encode())] * 4
        yield site


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "src").mkdir(parents=True)
    (folder / "notes.txt").write_text("notes\n")
    (folder / "agent").write_text(AGENT)
    (folder / "agent").chmod(0o755)
    (folder / "agent.py").write_text(PYTHON)
    (folder / "seen").symlink_to(tmp_path)
    return folder


async def started(site: Site, inputs: list[dict[str, Any]], *options: object, cwd: Path) -> asyncio.subprocess.Process:
    file = cwd.parent / "tasks.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in inputs))
    program = [sys.executable, "-c", "from trainer.commands.rollout import command; command()"]
    given = [
        "--dir",
        site.directory,
        "--policy",
        f"{str(site.http.base_url).rstrip('/')}/v1",
        "--input",
        file,
        "--json",
    ]
    return await asyncio.create_subprocess_exec(
        *program, *map(str, given), *map(str, options),
        cwd=cwd, env={**os.environ, "ARTTRACE_API_KEY": "secret", "ARTTRACE_CAPTURE_HTTP": "1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def rolled_out(site: Site, inputs: list[dict[str, Any]], *options: object, cwd: Path) -> tuple[int, Any, str]:
    """Exit code, what the command printed as JSON, and its lines."""
    process = await started(site, inputs, *options, cwd=cwd)
    out, said = await process.communicate()
    return process.returncode or 0, json.loads(out) if out.strip() else None, said.decode()


def kept(site: Site) -> dict[str, Trajectory]:
    with open_store(DataDir(site.directory), create=True) as store:
        return {run.id: run for run in store.trajectories()}


async def test_each_run_of_a_command_works_in_a_copy_and_is_in_the_group_of_its_input(
    site: Site, workspace: Path, tmp_path: Path
) -> None:
    seen = tmp_path / "listings"
    seen.mkdir()
    (workspace / ".arttrace").symlink_to(site.directory)
    inputs = [{"task": "sort it"}, {"task": "fail", "level": 2}]
    code, report, said = await rolled_out(
        site, inputs, "-n", 2, "--workspace", workspace, "--", "./agent", "{task}", seen, cwd=workspace
    )
    assert code == 0, said
    runs = kept(site)
    assert sorted((run["outcome"], run["reward"]) for run in report["runs"]) == [
        *[("complete", 0.5)] * 2,
        *[("failed", 0.5)] * 2,
    ]
    assert {run["trajectory"] for run in report["runs"]} == set(runs)
    by_group: dict[str, list[Trajectory]] = {}
    for run in runs.values():
        by_group.setdefault(str(run.group), []).append(run)
    assert sorted(by_group) == ['agent {"level":2,"task":"fail"}', 'agent {"task":"sort it"}']
    assert {len(group) for group in by_group.values()} == {2}
    assert {(run.entry, len(run.calls), run.incomplete) for run in runs.values()} == {("agent", 1, "")}
    assert {run.calls[0].call.messages[0].text for run in by_group['agent {"task":"sort it"}']} == {"sort it"}
    assert {run.group: run.metadata["rollout_input"] for run in runs.values()} == dict(
        zip(sorted(by_group), inputs[::-1], strict=True)
    )
    assert {run.error for run in runs.values()} == {None, "the program ended with exit code 3"}
    listed = {listing.read_text() for listing in seen.iterdir()}
    assert len(list(seen.iterdir())) == 4
    assert listed == {"agent\nagent.py\nnotes.txt\nseen\nsrc\n"}, "each saw a copy without what others made"
    assert not (workspace / "made").exists()
    printed = (site.directory / "logs" / "rollouts.log").read_text()
    assert printed.count("notes\n") == 4
    assert "somebody was here" not in printed


async def test_what_a_command_did_not_let_be_recorded_is_lost(site: Site, workspace: Path, tmp_path: Path) -> None:
    inputs = [{"task": one} for one in ("silent", "end", "slow")]
    code, report, said = await rolled_out(
        site, inputs, "-n", 1, "--held-out", "--timeout", 20, "--workspace", workspace,
        "--", "./agent", "{task}", tmp_path, cwd=workspace,
    )  # fmt: skip
    assert code == 1
    reasons = {run["reason"]: run["outcome"] for run in report["runs"]}
    assert reasons == {
        "nothing of it was captured": "lost",
        ENDED_ITSELF: "lost",
        "it took longer than 20 s": "lost",
    }, said
    runs = kept(site)
    assert {run.tags for run in runs.values()} == {("held-out",)}, "though one had ended before that was said"
    assert {run.incomplete for run in runs.values()} == {"", "interrupted: it took longer than 20 s"}


async def test_a_run_under_way_at_ctrl_c_is_none_to_learn_from(site: Site, workspace: Path, tmp_path: Path) -> None:
    process = await started(site, [{"task": "slow"}], "-n", 1, "--", "./agent", "{task}", tmp_path, cwd=workspace)
    async with asyncio.timeout(120):
        while not list(tmp_path.glob("*-*.listing")):
            await asyncio.sleep(0.05)
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 130
    [run] = kept(site).values()
    assert run.incomplete == "interrupted: the rollout was ended"


async def test_a_program_in_python_is_captured_in_its_process(site: Site, workspace: Path) -> None:
    code, report, said = await rolled_out(
        site, [{"task": "hi", "level": 3}], "-n", 1, "--held-out", "--", sys.executable, "agent.py", "{task} {level}",
        cwd=workspace,
    )  # fmt: skip
    assert code == 0, (said, (site.directory / "logs" / "rollouts.log").read_text())
    runs = kept(site)
    assert {run["trajectory"] for run in report["runs"]} == set(runs)
    assert {run["reward"] for run in report["runs"]} == {0.25}
    name = Path(sys.executable).name
    assert {(run.group, run.tags) for run in runs.values()} == {(f'{name} {{"level":3,"task":"hi"}}', ("held-out",))}
    assert {run.calls[0].call.messages[0].text for run in runs.values()} == {"hi 3"}
    done = CliRunner().invoke(command, ["--dir", str(site.directory), "--held-out", "--dry-run"])
    assert "1 x of a command, whose fields --input gives" in str(done.exception)


STARTED_BY: dict[str, list[str]] = {
    "itself": ["{python}", "{agent}", "{task}"],
    "env": ["env", "A=B", "{python}", "{agent}", "{task}"],
    "a shell": ["sh", "-c", '"{python}" {agent} "$1"; exit $?', "-", "{task}"],
    "a program in Python": ["./start", "{python}", "{agent}", "{task}"],
    "uv": [
        str(Path(sys.executable).with_name("uv")),
        "run",
        "--no-project",
        "--offline",
        "--python",
        "{python}",
        "{agent}",
        "{task}",
    ],
}


@pytest.mark.parametrize(
    ("by", "agent", "times"),
    [
        *[("itself", "undecorated.py", 2), ("itself", "decorated.py", 1)],
        *[("a program in Python", "undecorated.py", 1), ("a program in Python", "decorated.py", 2)],
        *[("uv", "undecorated.py", 1), ("env", "decorated.py", 1), ("a shell", "undecorated.py", 1)],
        # to arttrace run, uv, env and a shell are alike: programs that are not Python
        pytest.param("uv", "decorated.py", 2, marks=pytest.mark.full),
        pytest.param("env", "undecorated.py", 2, marks=pytest.mark.full),
        pytest.param("a shell", "decorated.py", 2, marks=pytest.mark.full),
    ],
)
async def test_what_starts_python_gives_one_run_for_each_rollout(
    site: Site, workspace: Path, by: str, agent: str, times: int
) -> None:
    (workspace / "undecorated.py").write_text(UNDECORATED)
    (workspace / "decorated.py").write_text(DECORATED)
    (workspace / "start").write_text(f"#!{sys.executable}\n{IN_TWO_STEPS}")
    (workspace / "start").chmod(0o755)
    inputs = [{"task": "hi", "python": sys.executable, "agent": agent}]
    code, report, said = await rolled_out(site, inputs, "-n", times, "--held-out", "--", *STARTED_BY[by], cwd=workspace)
    assert code == 0, (said, (site.directory / "logs" / "rollouts.log").read_text())
    runs = kept(site)
    assert {run["trajectory"] for run in report["runs"]} == set(runs), "none beside them"
    assert {(run["outcome"], run["reward"]) for run in report["runs"]} == {("complete", 0.25)}
    assert {run.group for run in runs.values()} == {run["group"] for run in report["runs"]}
    own = {"own"} if agent == "decorated.py" else set()
    assert [set(run.tags) for run in runs.values()] == [{"held-out", *own}] * times
    assert [run.metadata["rollout_input"] for run in runs.values()] == inputs * times
    assert [[one.call.messages[0].text for one in run.calls] for run in runs.values()] == [["hi"]] * times


@pytest.mark.parametrize("second", ["./agent {task} {seen}", "{python} decorated.py {task}"])
async def test_all_programs_of_a_command_are_one_run(site: Site, workspace: Path, tmp_path: Path, second: str) -> None:
    """Another one in Python, or one whose calls the gateway records."""
    (workspace / "decorated.py").write_text(DECORATED)
    inputs = [{"task": "hi", "python": sys.executable, "seen": str(tmp_path)}]
    script = f"{{python}} decorated.py {{task}}; {second}"
    code, report, said = await rolled_out(site, inputs, "-n", 1, "--held-out", "--", "sh", "-c", script, cwd=workspace)
    assert code == 0, (said, (site.directory / "logs" / "rollouts.log").read_text())
    [run] = kept(site).values()
    assert [one["trajectory"] for one in report["runs"]] == [run.id]
    assert (run.incomplete, run.group, run.tags) == ("", report["runs"][0]["group"], ("held-out", "own"))
    assert run.metadata["rollout_input"] == inputs[0]
    assert len(run.calls) == 2
    assert sorted(one.value for one in run.rewards) == ([0.25, 0.5] if "./agent" in second else [0.25, 0.25])


async def test_a_run_whose_command_goes_on_when_its_program_has_ended_is_not_complete(
    site: Site, workspace: Path
) -> None:
    """Its end comes with the command's: what is next may be a part of it."""
    (workspace / "undecorated.py").write_text(UNDECORATED)
    command = ["sh", "-c", '"$0" undecorated.py "$1"; sleep 600', sys.executable, "{task}"]
    code, report, said = await rolled_out(
        site, [{"task": "hi"}], "-n", 1, "--timeout", 20, "--", *command, cwd=workspace
    )
    assert code == 1, said
    assert [one["reason"] for one in report["runs"]] == ["it took longer than 20 s"]
    [run] = kept(site).values()
    assert (len(run.calls), run.incomplete) == (1, "step in progress")


async def test_what_a_command_pipes_into_its_program_is_read(site: Site, workspace: Path) -> None:
    (workspace / "reads.py").write_text(f"import sys; sys.argv.append(sys.stdin.read().strip())\n{UNDECORATED}")
    command = ["sh", "-c", 'echo "$1" | "$0" reads.py', sys.executable, "{task}"]
    code, _, said = await rolled_out(site, [{"task": "hi"}], "-n", 1, "--", *command, cwd=workspace)
    assert code == 0, said
    [run] = kept(site).values()
    assert (run.incomplete, [one.call.messages[0].text for one in run.calls]) == ("", ["hi"])


async def test_an_agent_of_agent_lightning_is_given_its_input_in_words(site: Site, workspace: Path) -> None:
    """A class that its local runner starts, with fields of the input in the environment."""
    (workspace / "start.py").write_text(OF_AGENT_LIGHTNING)
    inputs = [{"question": "1 = '$x'?", "answer": "a"}, {"question": "2?", "answer": "b"}]
    code, report, said = await rolled_out(
        site, inputs, "-n", 1, "--", sys.executable, "start.py", "{question}", "{answer}", cwd=workspace
    )
    assert code == 0, (said, (site.directory / "logs" / "rollouts.log").read_text())
    runs = kept(site).values()
    assert sorted((run.calls[0].call.messages[0].text, run.rewards[0].value) for run in runs) == [
        ("1 = '$x'?", 1.0),
        ("2?", 0.0),
    ]
    assert sorted(Counter(run.group for run in runs).values()) == [1, 1]
    assert {run["outcome"] for run in report["runs"]} == {"complete"}


def test_a_policy_that_nobody_serves_is_said_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"task": "a"}\n')
    given = ["--dir", str(tmp_path), "--input", str(tmp_path / "tasks.jsonl"), "--policy", "http://127.0.0.1:9/v1"]
    done = CliRunner().invoke(command, [*given, "--", "agent", "{task}"])
    assert "no policy answers at 127.0.0.1:9: " in str(done.exception)
    assert "Start `arttrace serve`" in str(done.exception)
    assert not (tmp_path / "logs").exists()


def test_words_name_fields() -> None:
    words = ("run", "{task}", "--level={level}", "{other}", '{"a": 1}', "${task}")
    [one] = command_inputs(words, [{"task": "a b", "level": [1, {"x": None}]}])
    assert one.command is not None
    assert one.command.words == ("run", "a b", '--level=[1,{"x":null}]', "{other}", '{"a": 1}', "$a b")
    with pytest.raises(RolloutError, match=r"input 2 has no field 'task'"):
        command_inputs(words, [{"task": "a", "level": 1}, {"level": 1}])
    with pytest.raises(
        RolloutError, match=r"no field of the inputs stands in the command run(.|\n)*\{level\}, \{task\}"
    ):
        command_inputs(("run",), [{"task": "a"}, {"level": 1}])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--", "agent", "{task}"], "a command takes its inputs from --input"),
        (["--input", "FILE", "--entry", "a:b", "--", "agent"], "neither --entry nor --route"),
        (["--input", "FILE", "--workspace", "."], "--workspace needs a command"),
        (["--input", "FILE"], "--input needs --entry, or a command"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: list[str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"task": "a"}\n')
    done = CliRunner().invoke(
        command, ["--dir", str(tmp_path), *(str(file) if one == "FILE" else one for one in given)]
    )
    assert done.exit_code == 2
    assert said in done.output
