"""The forms in which training data is written, what a row of each is made of, and what one of them cannot hold."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

Row = dict[str, Any]


class Form(StrEnum):
    """The forms, by who reads them."""

    TRL_SFT = "trl-sft"
    TRL_PROMPT_COMPLETION = "trl-prompt-completion"
    TRL_UNPAIRED = "trl-unpaired"
    TRL_PREFERENCE = "trl-preference"
    OPENAI_SFT = "openai-sft"
    OPENAI_DPO = "openai-dpo"
    SHAREGPT = "sharegpt"
    VERL_SFT = "verl-sft"
    VERL_RL = "verl-rl"
    ATIF = "atif"
    ART = "art"

    @property
    def is_of_pairs(self) -> bool:
        """Whether a row holds a better and a worse run."""
        return self in (Form.TRL_PREFERENCE, Form.OPENAI_DPO)

    @property
    def is_parquet(self) -> bool:
        """Whether it is a Parquet file; else it is JSON lines."""
        return self in (Form.VERL_SFT, Form.VERL_RL)


class Unsuitable(ValueError):
    """The form cannot hold this; the text is the reason, to be counted."""
