"""A backend changes where capture writes and under which project, and nothing else of what `init` set."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from backend_commands import rewarded

import arttrace
from arttrace.capture.export.lifecycle import recorder
from arttrace.loop import LocalBackend, TrainableModel, gather_trajectories
from arttrace.system.errors import TrainingError


def masked(value: Any, *, kind: str) -> Any:
    return "masked"


@pytest.mark.parametrize("by", ["a directory", "a registered model's project"])
def test_what_init_set_stays(by: str, backend: LocalBackend, model: TrainableModel, tmp_path: Path) -> None:
    arttrace.init(dir=tmp_path / "data", project="mine", mask=masked, capture_content="redacted", capture_http=True)

    async def registered() -> None:
        async with backend:
            await backend.register(TrainableModel("quiet", model.base_model, project="another"))

    if by == "a directory":
        LocalBackend(tmp_path / "second")
    else:
        asyncio.run(registered())
    now = recorder().settings
    assert (now.mask, now.capture_content, now.capture_http) == (masked, "redacted", True)
    assert (now.data.root.name, now.project) == (("second", "mine") if by == "a directory" else ("data", "another"))


def test_the_directory_may_have_the_name_that_art_gives_it(tmp_path: Path) -> None:
    assert LocalBackend(path=tmp_path / "art").data.root == tmp_path / "art"
    with pytest.raises(ValueError, match="dir and path name the same directory: pass one"):
        LocalBackend(tmp_path / "one", path=tmp_path / "two")


async def test_a_setting_is_a_path_or_is_refused_with_its_remedy(
    backend: LocalBackend, model: TrainableModel, tmp_path: Path
) -> None:
    async with backend:
        await gather_trajectories([rewarded(), rewarded()])
        [step] = await backend.train(model, kl_reference=tmp_path)
        assert step.version == "policy@1"
        with pytest.raises(TrainingError, match="the settings cannot be passed on") as refused:
            await backend.train(model, learning_rate=object())
        assert "float(x)" in str(refused.value.hint)
        with pytest.raises(TrainingError, match="max_logprob_difference is inf, no finite number"):
            await backend.train(model, max_logprob_difference=float("inf"))
        assert (await backend.train(model))[0].metrics["pid"] == step.metrics["pid"]
