"""For the tests that report to W&B: offline, in folders of their own, and nothing of it left for later tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def offline_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The variables under which W&B writes to disk alone, set here too. Its service, which W&B starts once in a process
    and names in os.environ, ends with the test: that of an earlier one would be neither this test's nor its
    children's."""
    wandb = pytest.importorskip("wandb")
    home = {f"WANDB_{name}_DIR": str(tmp_path / "home") for name in ("CONFIG", "CACHE", "DATA")}
    waits = {"WANDB__SERVICE_WAIT": "300", "WANDB_INIT_TIMEOUT": "300"}  # a busy machine takes longer than it thinks
    variables = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", **home, **waits}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield variables
    wandb.teardown()
