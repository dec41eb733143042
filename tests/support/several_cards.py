"""A machine with two CUDA cards, as far as a trainer of transformers counts them: a stand-in, without any."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers find two."""
    from transformers import TrainingArguments

    counted = TrainingArguments.__dict__["_setup_devices"]

    def devices(self: Any) -> Any:
        if "_counted" not in vars(self):
            self._counted = counted.__get__(self)
            self._n_gpu = 2
        return self._counted

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(devices))
