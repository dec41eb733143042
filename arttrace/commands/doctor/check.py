"""One check of `arttrace doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """The result of one check; `hint` says what to do if it failed."""

    name: str
    state: Literal["ok", "warning", "error"]
    found: str
    hint: str = ""
