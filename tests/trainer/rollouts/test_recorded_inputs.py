"""Which recorded runs and tool calls a rollout finds, how it goes on beside a run that is ended, and what it says of
runs that asked no policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import bedrock_server
import pytest
from bedrock_server import serve_bedrock
from click.testing import CliRunner
from gemini_server import answer_of, serve_gemini

from arttrace.capture.context.recorded_tools import replay
from arttrace.records import semconv
from arttrace.records.rollout import RecordedTool, RolloutJob
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.errors import RolloutError
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import REPLAY_OF
from arttrace.wire.span_attributes import MAX_ERROR_TEXT
from trainer.commands.rollout import _environment, command
from trainer.rollouts.replay import _recorded_tools
from trainer.rollouts.workers import RolloutWorkers


def recorded(number: int, word: str, replay_of: object = None) -> SpanRow:
    """The root span of a run of `agent.py:answer`."""
    attributes = {
        semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
        semconv.ENTRY: "agent.py:answer",
        semconv.ENTRY_ARGUMENTS: json.dumps({"word": word}),
        semconv.TRAJECTORY_ID: f"{number:032x}",
        semconv.SCENARIO: word,
        **({} if replay_of is None else {semconv.METADATA: json.dumps({REPLAY_OF: replay_of})}),
    }
    return SpanRow(f"{number:032x}", f"{number:016x}", "answer", number, number, attributes=attributes)


def test_recorded_runs_are_found_however_often_they_were_run_again(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([recorded(1, "fig"), recorded(2, "plum")])
        store.append(recorded(number, "fig", f"{1:032x}") for number in range(3, 1004))
    for options, words in (((), ["plum", "fig"]), (("--entry", "agent:answer"), ["plum", "fig"])):
        shown = CliRunner().invoke(command, ["--dir", str(tmp_path), "--dry-run", "--json", *options])
        assert [one["arguments"]["word"] for one in json.loads(shown.stdout)["scenarios"]] == words
    for more in ((), ("--held-out",)):  # what is named is held out, whatever it was
        named = ["--dir", str(tmp_path), "--dry-run", "--json", "--scenario", "fig", *more]
        shown = CliRunner().invoke(command, named)
        assert [one["arguments"]["word"] for one in json.loads(shown.stdout)["scenarios"]] == ["fig"]


def test_a_run_whose_metadata_says_something_else_by_the_word_is_no_replay(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([recorded(1, "fig", ["a", "b"]), recorded(2, "plum", {"of": 1})])
    shown = CliRunner().invoke(command, ["--dir", str(tmp_path), "--dry-run", "--json"])
    replayed = [(one["arguments"]["word"], one["replay_of"]) for one in json.loads(shown.stdout)["scenarios"]]
    assert replayed == [("plum", f"{2:032x}"), ("fig", f"{1:032x}")]


@pytest.mark.parametrize("line", [b"[1]", b"no JSON", b'{"word": "\xff"}', b'{"word": ' + b"[" * 100_000])
def test_a_line_of_inputs_that_cannot_be_read_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "inputs.jsonl"
    file.write_bytes(b'{"word": "fig"}\n' + line)
    options = ["--dir", str(tmp_path), "--dry-run", "--entry", "agent:answer", "--input", str(file)]
    with pytest.raises(RolloutError, match=r"line 2 of .*inputs\.jsonl is no JSON object"):
        CliRunner().invoke(command, options, catch_exceptions=False)


def test_a_policys_address_may_begin_with_capitals(tmp_path: Path) -> None:
    named = _environment(DataDir(tmp_path), "HTTP://h:1/v1", ["gpt-4o=market@3@HTTPS://i/v1"])
    assert named["ARTTRACE_ROUTE"] == "*=policy:latest@HTTP://h:1/v1,gpt-4o=market@3@HTTPS://i/v1"


@pytest.mark.parametrize(
    ("error", "message", "is_replayed"),
    [
        ("KeyError", "'fig'", True),
        ("ValueError", "no fig", True),
        ("ExceptionGroup", "no fig", False),  # made of others, of which the record holds nothing
        ("UnicodeDecodeError", "no fig", False),
        ("httpx.ReadTimeout", "no fig", False),
        ("ValueError", "x" * MAX_ERROR_TEXT, False),  # cut to this length
    ],
)
def test_a_failure_is_replayed_with_its_text_if_it_can_be_made_of_it(
    error: str, message: str, is_replayed: bool
) -> None:
    of_tool = {semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL, semconv.TRAJECTORY_ID: "t"}
    of_call = {semconv.TOOL_NAME: "price", semconv.TOOL_CALL_ARGUMENTS: '{"item": "fig"}', semconv.ERROR_TYPE: error}
    named = "execute_tool price"
    span = SpanRow("1" * 32, "2" * 16, named, 1, 2, status_message=message, attributes={**of_tool, **of_call})
    found: list[RecordedTool] = list(_recorded_tools("t", [span]))
    assert len(found) == is_replayed
    for tool in found:
        with pytest.raises((KeyError, ValueError)) as raised:
            replay(tool, None)
        assert (type(raised.value).__name__, str(raised.value)) == (error, message)


def test_no_run_begins_in_a_worker_that_is_being_ended(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text("import time\ndef work(seconds):\n    time.sleep(seconds)\n    return seconds\n")
    late, next_one = RolloutJob({"seconds": 60}), RolloutJob({"seconds": 0})
    with RolloutWorkers(f"{agent}:work", DataDir(tmp_path / "data"), concurrency=2, timeout_s=1) as workers:

        def admits(job: RolloutJob, under_way: Sequence[RolloutJob]) -> bool:
            is_being_ended = workers._workers[0].ended_because is not None
            return job.arguments == late.arguments or is_being_ended or not under_way

        ended, done = workers.run([late, next_one], admits=admits)
    assert ended.error == "it took longer than 1 s"
    assert (done.error, done.result) == (None, 0)


_BY_GOOGLE = """
from google import genai

def answer(word, url):
    with genai.Client(api_key="k", http_options={"base_url": url}) as client:
        return client.models.generate_content(model="gemini-x", contents=word).text
"""
_BY_BOTO3 = """
import boto3

def answer(word, url):
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "eu-west-1"}
    bedrock = boto3.client("bedrock-runtime", endpoint_url=url, **keys)
    said = bedrock.converse(modelId="nova-x", messages=[{"role": "user", "content": [{"text": word}]}])
    return said["output"]["message"]["content"][0]["text"]
"""


@pytest.mark.parametrize(
    ("program", "serve", "said"),
    [
        (_BY_GOOGLE, serve_gemini, answer_of({"text": "yellow"})),
        (_BY_BOTO3, serve_bedrock, bedrock_server.answer_of({"text": "yellow"})),
    ],
    ids=["google-genai", "boto3"],
)
def test_runs_whose_calls_went_past_the_policy_are_said_to_be_of_no_use_to_it(
    program: str, serve: Callable[[], AbstractContextManager[Any]], said: dict[str, Any], tmp_path: Path
) -> None:
    """Their tokens are counted by what the provider says was used."""
    (tmp_path / "agent.py").write_text(program)
    with serve() as server:
        server.answers += [said] * 2
        (tmp_path / "inputs.jsonl").write_text(json.dumps({"word": "fig", "url": server.url}))
        asked = ("--entry", f"{tmp_path}/agent.py:answer", "--input", f"{tmp_path}/inputs.jsonl")
        policy = ("--dir", f"{tmp_path}/data", "--policy", "http://127.0.0.1:9/v1", "-n", "2", "--concurrency", "1")
        done = CliRunner().invoke(command, [*policy, *asked])
    assert done.stdout.startswith("2 runs in 1 group: 2 complete; ")
    assert "Next:" not in done.stdout
    assert isinstance(done.exception, RolloutError)
    assert "no sampled token can be trained on by GRPO" in str(done.exception)
    assert "did not reach a policy" in str(done.exception)
