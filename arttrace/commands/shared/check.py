"""One thing that `arttrace doctor` looked at."""

from __future__ import annotations

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at; `hint` says what to do where it is not in order."""

    name: str
    state: Literal["ok", "warning", "error"]
    found: str
    hint: str = ""
