"""What is captured of a program: it is run once, into a directory of its own that is deleted afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from arttrace.capture.export.summary import CLIENTS
from arttrace.commands.doctor.check import Check
from arttrace.records.sequence import NotTrained
from arttrace.records.values.units import quantity
from arttrace.store import TrajectorySummary, open_store
from arttrace.system.errors import StoreError
from arttrace.system.exit_status import how_ended
from arttrace.system.paths import DataDir
from arttrace.trajectories import advice
from arttrace.views.labels import one_line
from arttrace.views.web.models.tokens.token_page import WORDS

_ELSEWHERE = ("ARTTRACE_ENDPOINT", "ARTTRACE_CONTEXT", "ARTTRACE_DISABLED", "ARTTRACE_SAMPLE")
_NOWHERE_ELSE = {"ARTTRACE_OTLP": "0", "ARTTRACE_LANGFUSE": "0"}
_RUN = "from arttrace.commands import main; main()"
_NOT_CAPTURED = (
    f"Calls of {CLIENTS} are captured, and with ARTTRACE_CAPTURE_HTTP=1 those of plain HTTP clients. A program that "
    "names a data directory of its own in arttrace.init(dir=...) records there."
)


def check_program(program: Sequence[str]) -> Iterator[Check]:
    """Runs a program as `arttrace run` does, what it prints on standard error, and says what was captured. Nothing of
    it comes into a store of the user's, or goes to a receiver."""
    with tempfile.TemporaryDirectory(prefix="arttrace-doctor-") as folder:
        environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
        command = [sys.executable, "-c", _RUN, "run", "--quiet", "--dir", folder, "--", *program]
        code = subprocess.run(
            command, env=environment | _NOWHERE_ELSE, stdout=sys.stderr.fileno(), check=False
        ).returncode
        if code:
            yield Check("program", "error", f"it ended with {how_ended(code)}", "Its output is above.")
        else:
            yield Check("program", "ok", "it ended without an error")
        try:
            with open_store(DataDir(Path(folder))) as store:
                runs = store.summaries()
                _, places = store.sql(
                    "SELECT DISTINCT model, document->'attributes'->>'server.address' FROM spans "
                    "WHERE model IS NOT NULL AND trajectory_id IS NOT NULL ORDER BY ALL LIMIT 5"
                )
        except StoreError:
            runs, places = [], []
    yield from _captured(runs, [f"{model} at {host}" if host else str(model) for model, host in places])


def _captured(runs: Sequence[TrajectorySummary], places: Sequence[str]) -> Iterator[Check]:
    calls = sum(run.calls for run in runs)
    if not calls:
        yield Check("captured", "error", "no model call was captured", _NOT_CAPTURED)
        return
    tools = sum(run.tool_calls for run in runs)
    found = f"{quantity(calls, 'model call')} and {quantity(tools, 'tool call')} in {quantity(len(runs), 'run')}"
    yield Check("captured", "ok", one_line(f"{found}: {', '.join(places)}"))
    for run in runs:
        if run.incomplete:
            yield Check(
                "captured",
                "warning",
                one_line(f"a run is incomplete: {run.incomplete}"),
                " ".join(("It is not trained on.", *advice.on_incomplete(run.incomplete))),
            )
        for kind, count in run.unread.items():
            helps = " ".join(advice.on_unread([kind]))
            yield Check("captured", "warning", one_line(f"{quantity(count, 'call')} not read: {kind}"), helps)
    yield token_check(runs)


def token_check(runs: Sequence[TrajectorySummary]) -> Check:
    """Whether the sampled tokens of runs can be trained on, and why not."""
    captured, trained = sum(run.captured_tokens for run in runs), sum(run.trained_tokens for run in runs)
    reasons: Counter[str] = Counter()
    for run in runs:
        reasons.update(run.quarantined)
    found = f"{trained} of {captured} sampled tokens can be trained on"
    if not reasons:
        return Check("token ids", "ok", found)
    [(reason, count)] = reasons.most_common(1)
    set_aside = f"{quantity(count, 'call')}, {reason}"
    if trained:
        return Check("token ids", "ok", f"{found}; set aside: {set_aside}")
    words, hint = WORDS.get(NotTrained(reason), (reason, ""))
    return Check("token ids", "warning", f"{found}: {set_aside}. {words}", hint)
