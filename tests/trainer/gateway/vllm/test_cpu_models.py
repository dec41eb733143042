"""What vLLM's registry of models does in a process of its own is done here."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest

from trainer.gateway.engines.vllm.cpu_models import look_at_models_here


@pytest.fixture(scope="module")
def registry() -> Any:
    """Imported by the one worker that runs these tests: that takes seconds, and each one collects this file."""
    return pytest.importorskip("vllm.model_executor.models.registry", reason="vLLM is not installed")


def test_it_is_done_in_this_process(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_run_in_subprocess", registry._run_in_subprocess)
    look_at_models_here()
    assert registry._run_in_subprocess(os.getpid) == os.getpid()


def test_a_vllm_that_does_it_by_another_function_is_left_as_it_is(
    registry: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(registry, "_run_in_subprocess")
    with caplog.at_level(logging.WARNING, logger="vllm"):
        logging.getLogger("vllm").addHandler(caplog.handler)
        try:
            look_at_models_here()
        finally:
            logging.getLogger("vllm").removeHandler(caplog.handler)
    assert "takes longer" in caplog.text
    assert not hasattr(registry, "_run_in_subprocess")
