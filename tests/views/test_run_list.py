"""The rows of the viewer's list of runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_agent import Run, message

from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.web.models.run_list import run_row


@pytest.mark.parametrize(
    ("id", "shown"),
    [
        ("0123456789abcdef0123456789abcdef", "01234567"),
        ("checkout-2026-11-23-0007", "checkout-2026-11-23-0007"),
        ("nightly-evaluation-of-the-checkout-agent-2026-11-23-0007", "nightly-evaluation-o…ent-2026-11-23-0007"),
    ],
)
def test_an_id_that_somebody_chose_is_shown_whole_or_with_both_its_ends(tmp_path: Path, id: str, shown: str) -> None:
    run = Run(id)
    run.chat("c", [message("user", "hello")], message("assistant", "hi"), at=1)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.end(at=10))
        [summary] = store.summaries()
    assert run_row(summary).short == shown
