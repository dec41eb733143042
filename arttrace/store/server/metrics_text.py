"""Numbers in Prometheus' text format: what `/metrics` of every server here answers with."""

from __future__ import annotations

from typing import Literal

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricsText:
    """Metrics in the order in which they are added, described before their first value; their names begin with
    `prefix`. What is added is what they are now: nothing is counted here."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._described: set[str] = set()
        self._lines: list[str] = []

    def add(self, kind: Literal["counter", "gauge"], name: str, help: str, value: float, **labels: str) -> None:
        """Adds the value of a metric under its labels."""
        name = f"{self._prefix}{name}"
        if name not in self._described:
            self._described.add(name)
            self._lines += (f"# HELP {name} {help}", f"# TYPE {name} {kind}")
        shown = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
        self._lines.append(f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}")

    def encode(self) -> bytes:
        """The response's body."""
        return ("\n".join(self._lines) + "\n").encode()
