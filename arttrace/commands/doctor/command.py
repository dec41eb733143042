"""`arttrace doctor`: checks the installation, the data directory and the servers in use."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import httpx
import msgspec
from packaging.requirements import Requirement
from packaging.version import Version

from arttrace.capture.base.variables import named_already, unread
from arttrace.capture.export.shipping.forwarding import waiting as outboxes
from arttrace.capture.export.summary import CLIENTS
from arttrace.capture.patches.hooks import hooked_modules
from arttrace.commands.doctor.check import Check
from arttrace.commands.doctor.destinations import langfuse, receivers
from arttrace.commands.doctor.machine import machine
from arttrace.commands.doctor.probes import ask_for_tokens, ask_judge, send_span
from arttrace.commands.scoring.judge_options import judge_base_url_option, judge_params
from arttrace.commands.shared.extras import PACKAGE_OF_EXTRA, foreign_trainer, installed_version, is_missing
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.machine_errors import machine_error
from arttrace.commands.shared.options import dir_option, json_option
from arttrace.commands.shared.progress import reading_progress
from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.units import quantity, size_text
from arttrace.system.addresses import verified, without_login
from arttrace.system.errors import ArttraceError
from arttrace.system.files import directory_bytes
from arttrace.system.paths import DataDir, beside_another

_LOW_DISK = 1 << 30
_TIMEOUT_S = 5.0
_NEWEST = 20
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command("doctor")
@click.option("--probe", is_flag=True, help="Send a test span to the receivers, and ask model servers for one token.")
@click.option("--judge", metavar="MODEL", help="Have this judge, by its litellm name, score two answers.")
@judge_base_url_option
@json_option
@dir_option
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def command(
    program: tuple[str, ...],
    probe: bool,
    judge: str | None,
    judge_base_url: str | None,
    as_json: bool,
    data: DataDir,
) -> None:
    """Check this installation: packages and their versions, model clients, the data directory, the store, GPU and
    engine, and the servers that the environment names. Exit code 1 if something does not work.

    With --probe, a span that belongs to no run is sent to the collector and to each receiver that the environment
    names, and looked up in the collector's store; and the model servers that the environment names are asked for one
    token, to see whether its ids are returned. With --judge, a judge is asked once; the provider charges for the call.

    With `-- PROGRAM`, such as `arttrace doctor -- python agent.py`, the program is run once, with real calls, and the
    report says what was captured: the calls, whether runs are complete, whether there are token ids. It is recorded
    into a directory that is deleted afterwards; nothing reaches a store or a receiver.
    """
    if judge_base_url and not judge:
        raise click.UsageError("--judge-base-url says where the judge is: give --judge MODEL too")
    checks = [check for look in _LOOKS for check in _looked(look, data)]
    if probe:
        checks += send_span(data)
        checks += [ask_for_tokens(base, key) for _, base, key, _ in _model_servers(data)]
    if judge:
        if is_missing("judge"):
            raise click.ClickException("asking a judge needs the package litellm: pip install 'arttrace[judge]'")
        checks.append(ask_judge(judge, judge_params(judge, judge_base_url)))
    if program:
        if is_missing("store"):
            raise click.ClickException("checking a program needs the package duckdb: pip install 'arttrace[store]'")
        from arttrace.commands.doctor.checked_program import check_program

        checks += check_program(program)
    if as_json:
        print_json(checks)
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            state = click.style(f"{check.state:7}", fg=_COLOURS[check.state])
            click.echo(f"{state}  {check.name:{width}}  {check.found}")
            if check.hint:
                click.echo(f"{'':{width + 11}}{check.hint}")
    if any(check.state == "error" for check in checks):
        raise SystemExit(1)


def _looked(look: Callable[[DataDir], Iterator[Check]], data: DataDir) -> Iterator[Check]:
    """The result of a check; a refusal by the operating system becomes a failed check."""
    try:
        yield from look(data)
    except OSError as error:
        found = machine_error(error)
        if found is None:
            raise
        yield Check(look.__name__.strip("_").replace("_", " "), "error", found.message, found.hint or "")


def _packages(_data: DataDir) -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    needed = [Requirement(text) for text in importlib.metadata.requires("arttrace") or ()]
    extras = [extra for extra in PACKAGE_OF_EXTRA if not is_missing(extra)]
    wrong = [found for one in needed if (found := _not_met(one, extras))]
    installed = f"arttrace {importlib.metadata.version('arttrace')}" + (f" with {', '.join(extras)}" if extras else "")
    if wrong:
        hint = "Install them with: pip install 'arttrace" + (f"[{','.join(extras)}]" if extras else "") + "'"
        yield Check("packages", "error", f"{installed}; {'; '.join(wrong)}", hint)
    else:
        yield Check("packages", "ok", installed)
    if other := foreign_trainer():
        hint = "Take its folder off PYTHONPATH, or rename it: `arttrace train` and others cannot run."
        yield Check("trainer", "error", f"Python finds {other} as the module `trainer`", hint)


def _not_met(one: Requirement, extras: list[str]) -> str:
    if one.marker is not None and not any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
        return ""
    version = installed_version(one.name)
    if not version:
        return f"{one.name} is not installed"
    if one.specifier.contains(version, prereleases=True):
        return ""
    return f"{one.name} {version} is not {one.specifier}"


def _environment(_data: DataDir) -> Iterator[Check]:
    for name, hint in unread(os.environ):
        named_already(name)
        yield Check("environment", "warning", f"nothing reads {name}", hint)


def _clients(_data: DataDir) -> Iterator[Check]:
    installed = {name: version for name in ("openai", *_OTHER_CLIENTS) if (version := installed_version(name))}
    if version := installed.get("openai"):
        known = version.partition(".")[0] in ("2", "3")
        hint = "" if known else "Versions 2 and 3 are supported."
        yield Check("openai", "ok" if known else "error", version, hint)
    elif not {"anthropic", "google-genai", "mistralai", "ollama", "groq"} & installed.keys():
        hint = f"Only calls of {CLIENTS} are captured by themselves."
        yield Check("openai", "warning", "not installed", hint)
    for name, module in _OTHER_CLIENTS.items():
        if not (version := installed.get(name)):
            continue
        if any(hooked.startswith(module) for hooked in hooked_modules()):
            yield Check(name, "ok", version)
        else:
            hint = (
                "Call its models by the openai client and the provider's OpenAI-compatible address, or instrument it "
                "with OpenTelemetry and send the spans to `arttrace collect`."
            )
            yield Check(name, "warning", f"{version}, whose calls are not captured", hint)
    if version := installed_version("claude-agent-sdk"):
        if Version(version) >= Version(_CLAUDE_AGENT_SDK):
            yield Check("claude-agent-sdk", "ok", version)
        else:
            hint = f"Install {_CLAUDE_AGENT_SDK} or newer. `arttrace import` reads the session files of older ones."
            yield Check("claude-agent-sdk", "warning", f"{version}, whose calls are not captured", hint)


_CLAUDE_AGENT_SDK = "0.2.160"
"""The least version whose Claude Code (2.1.283) says which answer is whose."""
_OTHER_CLIENTS = {
    "anthropic": "anthropic.",
    "google-genai": "google.genai.",
    "ollama": "httpx",  # by which it sends
    "boto3": "botocore.",
    "mistralai": "mistralai.",
    "groq": "groq.",
    "cerebras-cloud-sdk": "cerebras.",
    "sambanova": "sambanova.",
    "google-generativeai": "google.generativeai.",
}


def _refused_by(folder: Path) -> str:
    """Why nothing can be made in a folder, or "". Something is made, and removed: what permissions allow may fail yet,
    as in /proc."""
    try:
        Path(tempfile.mkdtemp(prefix=".arttrace-doctor-", dir=folder)).rmdir()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _directory(data: DataDir) -> Iterator[Check]:
    name = "data directory"
    if (above := data.above()) is not None:
        yield Check(name, "warning", str(data.root), beside_another(data, above))
        return
    nearest = next(folder for folder in (data.root, *data.root.parents) if folder.exists())
    if refused := _refused_by(nearest):
        found = f"{nearest} cannot be written: {refused}"
        if nearest != data.root:
            found = f"{data.root} cannot be made: {found}"
        yield Check(name, "error", found, "Give it to this user, or choose another with --dir or ARTTRACE_DIR.")
        return
    if nearest != data.root:
        yield Check(name, "ok", f"{data.root} (made by the first run)")
        return
    free = shutil.disk_usage(data.root).free
    waiting = directory_bytes(data.spool, ".seg")
    found = f"{data.root}, {size_text(free)} free" + (f", {size_text(waiting)} in the spool" if waiting else "")
    if free < _LOW_DISK:
        yield Check(name, "warning", found, "Records are refused on a full disk: make room, or `arttrace prune`.")
    elif data.root.stat().st_mode & 0o077:
        yield Check(name, "warning", found, f"Other users can read it: chmod -R go= {data.root}")
    else:
        yield Check(name, "ok", found)
    if left := directory_bytes(data.outbox, ".seg"):
        hint = "`arttrace ship` delivers it, with ARTTRACE_ENDPOINT set."
        yield Check("outbox", "warning", f"{size_text(left)} not delivered to a collector", hint)
    for about, directory in outboxes(data):
        if left := directory_bytes(directory, ".seg"):
            hint = (
                "The program that sends there delivers it when it runs again; `arttrace ship`, with its settings, too."
            )
            yield Check("outbox", "warning", f"{size_text(left)} not delivered to {about.name}", hint)


def _store(data: DataDir) -> Iterator[Check]:
    if is_missing("store") or not data.store.exists():
        return
    from arttrace.commands.doctor.checked_program import token_check
    from arttrace.store import open_store

    try:
        with reading_progress(), open_store(data) as store:
            [(runs,)] = store.sql("SELECT count(*) FROM trajectories")[1]
            newest = store.summaries(limit=_NEWEST)
    except ArttraceError as error:
        yield Check("store", "error", error.message, error.hint or "")
        return
    yield Check("store", "ok", f"{quantity(runs, 'run')}, {size_text(data.store.stat().st_size)}")
    if of_policies := [run for run in newest if run.policy_versions]:  # others are not asked for token ids
        yield token_check(of_policies)


def _servers(data: DataDir) -> Iterator[Check]:
    for name, base, own, hint in _model_servers(data):
        yield _asked(name, f"{base}/models", own, hint)


def _model_servers(data: DataDir) -> list[tuple[str, str, str | None, str]]:
    """Of each: what it is, its base URL, its key, and what to do where it does not answer."""
    found: dict[str, tuple[str, str | None, str]] = {}
    if data.serving.exists():
        try:
            url = str(msgspec.json.decode(data.serving.read_bytes(), type=dict[str, object]).get("url"))
        except (OSError, *UNREADABLE):
            url = str(data.serving)
        key = os.environ.get("ARTTRACE_API_KEY")
        found[f"{url}/v1"] = ("policy server", key, "Start it again: arttrace serve --base-model DIR")
    for name, variable, key_variable in (
        ("policy server", "ARTTRACE_POLICY_URL", "ARTTRACE_POLICY_API_KEY"),
        ("model server", "OPENAI_BASE_URL", "OPENAI_API_KEY"),
    ):
        if base := os.environ.get(variable):
            hint = f"Check {variable} and {key_variable}."
            found.setdefault(base.rstrip("/"), (name, os.environ.get(key_variable), hint))
    return [(name, base, key, hint) for base, (name, key, hint) in found.items()]


def _asked(name: str, url: str, key: str | None, hint: str) -> Check:
    headers, shown = {"authorization": f"Bearer {key}"} if key else {}, without_login(url)
    try:
        status = httpx.get(url, headers=headers, timeout=_TIMEOUT_S, verify=verified(url)).status_code
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return Check(name, "error", f"{shown} does not answer ({type(error).__name__})", hint)
    if status in (401, 403):
        return Check(name, "error", f"{shown} refuses the key ({status})", hint)
    if status >= 400:
        return Check(name, "warning", f"{shown} answers {status}", hint)
    return Check(name, "ok", shown)


_LOOKS: tuple[Callable[[DataDir], Iterator[Check]], ...] = (
    _packages,
    _environment,
    _clients,
    machine,
    _directory,
    _store,
    receivers,
    langfuse,
    _servers,
)
