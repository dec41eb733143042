"""A backend changes where capture writes and under which project, and nothing else of what `init` set."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import arttrace
from arttrace.capture.export.lifecycle import recorder
from arttrace.loop import LocalBackend, TrainableModel


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
