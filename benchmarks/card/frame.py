"""What sections have in common: their configuration, tables that survive a stopped section, processes with a limit."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.card.bundle import remedy_for

_GRACE_S = 20
"""Seconds beyond its budget before a section is stopped: `left_s` lets it end by itself."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the benchmark: the module `benchmarks.card.MODULE`, whose `run(config)` returns a Table."""

    key: str
    module: str
    title: str
    budget_s: int


@dataclass(frozen=True, slots=True)
class Config:
    """What a section is given. `scratch` is a folder for its files, removed after it; `ends_at` is on the monotonic
    clock, when the section should be done; `layouts` are the rows of section a to run, all where there are none."""

    device: str
    quick: bool
    out: Path
    scratch: Path
    tau_bench: Path | None
    ends_at: float
    layouts: tuple[str, ...] = ()

    @property
    def models(self) -> Path:
        """Where models of real shapes are: gigabytes, which stay for the other sections and the next call."""
        return self.scratch if self.toy else Path(tempfile.gettempdir()) / "arttrace-card-models"

    @property
    def toy(self) -> bool:
        """Whether sizes are those of a test on a CPU."""
        return self.device == "cpu"

    @property
    def left_s(self) -> float:
        """Seconds that the section still has."""
        return max(0.0, self.ends_at - time.monotonic())

    def machine(self) -> str:
        """The device and the versions that a figure depends on, in one line."""
        import torch
        import transformers

        name = torch.cuda.get_device_name() if self.device == "cuda" else f"CPU, {torch.get_num_threads()} thread(s)"
        return f"{name}; torch {torch.__version__}, transformers {transformers.__version__}"


@dataclass
class Table:
    """A table that is printed, and written to `path`, line by line as its rows are known."""

    title: str
    columns: Sequence[str]
    path: Path
    first: int = 26
    """Width of the first column."""
    rows: list[tuple[str, ...]] = field(default_factory=list)
    failures: int = 0

    def __post_init__(self) -> None:
        self.note(self.title)
        self._line(self.columns)

    def add(self, *cells: object) -> None:
        """A row; numbers are formatted by whoever gives them."""
        self.rows.append(tuple(map(str, cells)))
        self._line(self.rows[-1])

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """What fails inside is said in the table and ends nothing else of its section."""
        try:
            yield
        except ImportError as error:
            self.note(f"{what}: {remedy_for(error.name) or f'not installed: {error}'}")
        except Exception as error:  # noqa: BLE001 - whatever a card makes of it
            self.failures += 1
            self.note(f"{what}: failed: {type(error).__name__}: {str(error)[:400]}")
            traceback.print_exc()
            traceback.clear_frames(error.__traceback__)  # they hold models
        if "torch" in sys.modules and (cuda := sys.modules["torch"].cuda).is_available():
            cuda.empty_cache()

    def note(self, text: str) -> None:
        """A line that belongs to no column."""
        print(text, flush=True)
        with self.path.open("a") as file:
            file.write(text + "\n")

    def _line(self, cells: Sequence[str]) -> None:
        widths = [self.first, *(max(10, len(name) + 2) for name in self.columns[1:])]
        texts = [
            cells[0].ljust(widths[0]),
            *(" " + cell.rjust(width - 1) for cell, width in zip(cells[1:], widths[1:], strict=False)),
        ]
        self.note("".join(texts).rstrip())


def run_here(section: Section, config: Config) -> None:
    """Run a section in this process; what it raises is noted beside its table."""
    path = config.out / f"{section.key}.txt"
    path.write_text("")
    try:
        table = importlib.import_module(f"benchmarks.card.{section.module}").run(config)
    except ImportError as error:
        _append(path, remedy_for(error.name) or f"not installed: {error}")
    except Exception as error:
        _append(path, f"failed: {type(error).__name__}: {error}")
        traceback.print_exc()
        raise SystemExit(1) from error
    else:
        if table.failures:
            raise SystemExit(1)


def run_section(section: Section, command: list[str], out: Path) -> bool:
    """Run a section as a process, stopped with all that it started when its budget is spent. Whether it ended well."""
    print(f"\n== {section.key}: {section.title} (at most {section.budget_s} s)", flush=True)
    started = time.monotonic()
    process = subprocess.Popen(command, start_new_session=True, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"})
    try:
        code = process.wait(timeout=section.budget_s + _GRACE_S)
    except subprocess.TimeoutExpired:
        _append(out / f"{section.key}.txt", f"stopped: not done after {section.budget_s + _GRACE_S} s")
        code = 1
    finally:
        _end_group(process)
    print(f"== {section.key}: {time.monotonic() - started:.0f} s", flush=True)
    return code == 0


def _append(path: Path, text: str) -> None:
    print(text, file=sys.stderr, flush=True)
    with path.open("a") as file:
        file.write(text + "\n")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the process and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
