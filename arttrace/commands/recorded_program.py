"""A program in any language as one run that the gateway records: its clients are directed there, its end is reported
there.

The program is a child: its terminal and the signals that a terminal sends are its own, others are passed on to it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import msgspec

from arttrace.records.rollout import BEGUN_IN, ROLLOUT, RolloutJob
from arttrace.records.values.units import quantity
from arttrace.system.addresses import verified, why_never_asked, without_login
from arttrace.system.exit_status import how_ended
from arttrace.system.private_files import users_umask
from arttrace.system.processes import tell
from arttrace.wire.content.secrets import NO_KEY

_ANSWER_WITHIN_S = 30.0
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_CLAUDE_MODELS = (
    "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
)  # fmt: skip


class NoGateway(NamedTuple):
    """Why what is at an address cannot record a program, and what to do about it."""

    cause: str
    remedy: str
    answers: bool = False
    """Whether it is a server all the same, which may answer Python programs that are captured in their process."""


@dataclass(frozen=True)
class PolicyGateway:
    """Where --policy leads: the model's name, the gateway's root, and its key."""

    model: str
    server: str
    key: str | None

    @property
    def host(self) -> str:
        """Its host and port, for display."""
        return without_login(self.server).partition("//")[2].partition("/")[0]

    def client(self) -> httpx.Client:
        """A client of the gateway."""
        headers = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        verify = verified(self.server)
        return httpx.Client(headers=headers, trust_env=False, timeout=_ANSWER_WITHIN_S, verify=verify)

    def problem(self) -> NoGateway | None:
        """Why it cannot record a program; None when it can."""
        if why := why_never_asked(self.server, self.key):
            return NoGateway(why, "Name where `arttrace serve` runs, and its key: ARTTRACE_POLICY_API_KEY.")
        try:
            with self.client() as client:
                answer = client.get(f"{self.server}/v1/models")
        except httpx.HTTPError as error:
            return NoGateway(str(error) or type(error).__name__, "Start `arttrace serve`, or name where it runs.")
        if answer.status_code == 401:
            return NoGateway(
                "it asks for another key than $ARTTRACE_POLICY_API_KEY", "Set ARTTRACE_POLICY_API_KEY to its key."
            )
        with contextlib.suppress(httpx.HTTPStatusError, ValueError, KeyError, TypeError, AttributeError):
            if any(model.get("owned_by") == "arttrace" for model in answer.raise_for_status().json()["data"]):
                return None
        what = f"what answers ({answer.status_code}) is not `arttrace serve`"
        return NoGateway(what, "Name where `arttrace serve` runs.", answers=True)


def policy_gateway(model: str, base_url: str, environment: Mapping[str, str] = os.environ) -> PolicyGateway:
    """The gateway at a base URL; its key is $ARTTRACE_POLICY_API_KEY."""
    server = base_url.rstrip("/").removesuffix("/v1")
    return PolicyGateway(model, server, environment.get("ARTTRACE_POLICY_API_KEY") or None)


def run_recorded(
    executable: str, arguments: list[str], environment: Mapping[str, str], gateway: PolicyGateway, *, quiet: bool
) -> int:
    """Run the program and return its exit code, or 128 plus the number of the signal that ended it."""
    order = msgspec.json.decode(environment.get(ROLLOUT, "{}"), type=dict[str, Any])
    trajectory = order.pop("trajectory_id", None) or uuid4().hex
    url = f"{gateway.server}/r/{trajectory}"
    begun_in = order.pop(BEGUN_IN, None)
    left_out = {"ANTHROPIC_API_KEY", *([ROLLOUT] if begun_in is None else [])}
    inherited = {name: value for name, value in environment.items() if name not in left_out}
    code = _run(executable, arguments, inherited | client_environment(url, gateway.model, gateway.key))
    program = Path(executable).name
    if begun_in is not None and _is_begun(begun_in):  # one in Python says itself what the rollout says of the run
        order = {"entry": program}
    else:
        order |= {"entry": program, "metadata": {**order.get("metadata", {}), "exit_code": code}}
    said = _end(gateway, trajectory, program, code, order)
    if not quiet:
        tell(f"arttrace: {said}")
    return code


def end_interrupted(gateway: PolicyGateway, jobs: Iterable[tuple[RolloutJob, str | None]]) -> None:
    """End the runs of rollouts' commands that were ended from outside, each with why (None: it was not), so that none
    is taken for a whole one. Those of which the gateway knows nothing are left alone, all where it does not answer."""
    with contextlib.suppress(httpx.HTTPError), gateway.client() as client:
        for job, why in jobs:
            if why is not None:
                order = {"interrupted": why, "group": job.group, "tags": job.tags, "metadata": job.metadata}
                client.post(f"{gateway.server}/r/{job.trajectory_id}/end", json=order)


def client_environment(base_url: str, model: str, key: str | None) -> dict[str, str]:
    """The variables that make OpenAI's and Anthropic's clients, and Claude Code, ask `base_url` for `model`."""
    shown = key or NO_KEY
    return {
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "OPENAI_API_BASE": f"{base_url}/v1",
        "OPENAI_API_KEY": shown,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_AUTH_TOKEN": shown,
        **dict.fromkeys(_CLAUDE_MODELS, model),
    }


def _run(executable: str, arguments: list[str], environment: Mapping[str, str]) -> int:
    child = subprocess.Popen(
        [arguments[0], *arguments[1:]], executable=executable, env=environment, umask=users_umask()
    )

    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    # The terminal sends these to the child too; it decides what they mean.
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}
    for name in _PASSED_ON:
        if (number := getattr(signal, name, None)) is not None:
            before[number] = signal.signal(number, pass_on)
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _is_begun(path: str) -> bool:
    """Whether a program in Python has begun the run of the rollout's command; see capture.export.command_run.py."""
    try:
        return Path(path).stat().st_size > 0
    except OSError:
        return False


def _end(gateway: PolicyGateway, trajectory: str, program: str, code: int, order: dict[str, Any]) -> str:
    """End the run with what a rollout says of it; returns what to print about it."""
    if code:
        order["error"] = f"the program ended with {how_ended(code)}"
    try:
        with gateway.client() as client:
            answer = client.post(f"{gateway.server}/r/{trajectory}/end", json=order)
        if answer.status_code == 404:
            return (
                f"no model call of {program} itself reached the gateway: clients that are not Python's have to use"
                " OPENAI_BASE_URL or ANTHROPIC_BASE_URL. Python programs that it starts are captured on their own"
            )
        report = answer.raise_for_status().json()
        recorded = f"{quantity(report['calls'], 'model call')} of {program} recorded as run {trajectory}"
        if report["already_ended"]:
            return f"{recorded}, which it ended itself: that it ended with {how_ended(code)} is not in it"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        return f"run {trajectory} is recorded, but not ended: the gateway did not answer ({type(error).__name__})"
    return recorded
