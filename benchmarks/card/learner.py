"""Section a: one step of the learner on groups of runs, in several layouts and beside other libraries.

Tokens/s are trained tokens by wall-clock seconds. MFU counts the operations that the layout needs (shapes.py); what
checkpointing computes again is not among them; "kept" are the layers that it leaves out, as memory has room for them.
Gradients are compared with those of a step in float32 on the same weights: the norm of the difference by that of the
reference. Where the time of the first row goes is in a.profile.txt.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.card.frame import Config, Table
from benchmarks.card.learner_row import LAYOUTS, Row, as_json, measure
from benchmarks.card.shapes import (
    QWEN3_06B,
    QWEN3_4B,
    QWEN3_8B,
    QWEN3_30B_A3B,
    TOY,
    TOY_MIXTURE,
    Shape,
    dense_rate,
    make_model,
    why_not_fitting,
)

ROOT = Path(__file__).resolve().parents[2]
OURS = (
    "tree",
    "row per call",
    "packed",
    "tree, layers kept",
    "tree, layers again",
    "tree, PEFT's LoRA",
    "tree, plain norms",
    "tree, varlen",
    "tree, block by block",
)
BOTH = ("tree", "row per call", "packed")
RIVALS = ("stock TRL", "TRL's tree", "Unsloth", "tree, Liger", "tree, compiled")
COLUMNS = ("layout", "trained", "forwarded", "seconds", "tokens/s", "MFU %", "peak GiB", "kept", "gradients")
PROFILE = "a.profile.txt"
Case = tuple[str, int, int, int]


def run(config: Config) -> Table:
    """The table: cases one below the other, the most telling first."""
    if unknown := sorted(set(config.layouts) - LAYOUTS.keys()):
        raise ValueError(f"no such layout: {', '.join(unknown)}; there are: {'; '.join(LAYOUTS)}")
    rate, source = dense_rate(config.device)
    (config.out / PROFILE).unlink(missing_ok=True)
    table = Table(f"One optimisation step; {config.machine()}", COLUMNS, config.out / "a.txt")
    table.note(f"MFU of {source}")
    for layout, meaning in LAYOUTS.items():
        table.note(f"  {layout}: {meaning}")
    for shape, case, planned in _plan(config):
        layouts = [one for one in planned if not config.layouts or one in config.layouts]
        if not layouts:
            continue
        if config.left_s < 30:
            table.note(f"not run for want of time: {shape.name}, {_title(case)}, and what follows")
            break
        if why := why_not_fitting(shape, config.device):
            table.note(why)
            continue
        table.note(f"{shape.name}, {_title(case)}")
        with table.attempt(f"{shape.name}, {_title(case)}"):
            base = make_model(shape, config.models / shape.name, config.device)
            _compare(config, table, rate, shape, base, case, layouts)
    return table


def _plan(config: Config) -> list[tuple[Shape, Case, Sequence[str]]]:
    """Shapes, cases and layouts, most valuable first."""
    everything = (*BOTH, *RIVALS, *(layout for layout in OURS if layout not in BOTH))
    if config.toy:
        # The one is a kernel of CUDA's, the others what toys do anyway, and what has no room to tell there.
        ours = [one for one in OURS if one not in ("tree, varlen", "tree, layers kept", "tree, layers again")]
        case = ("synthetic", 64, 2, 3)
        return [(TOY, case, ours if config.quick else [*ours, *RIVALS]), (TOY_MIXTURE, case, ("tree", "packed"))]
    short, long = ("synthetic", 2048, 10, 20), ("synthetic", 8192, 20, 40)
    tau = [(QWEN3_4B, ("tau-bench", 3, 0, 0), BOTH)] if config.tau_bench else []
    if config.quick:
        return [(QWEN3_06B, short, everything), *((QWEN3_06B, case, layouts) for _, case, layouts in tau)]
    return [
        (QWEN3_4B, short, everything),
        *tau,
        (QWEN3_4B, ("synthetic", 512, 4, 8), BOTH),
        (QWEN3_4B, long, ("tree", "tree, varlen", "packed")),
        (QWEN3_8B, short, ("tree", "packed")),
        (QWEN3_06B, short, ("tree", "packed")),
        (QWEN3_30B_A3B, short, ("tree", "packed")),
    ]


def _title(case: Case) -> str:
    kind, size, least, most = case
    if kind == "tau-bench":
        return f"tau-bench airline, {size} groups of 4 runs"
    return f"a group of 8 runs of {least} to {most} turns, {size} tokens shared"


def _compare(
    config: Config, table: Table, rate: float, shape: Shape, base: Path, case: Case, layouts: Sequence[str]
) -> None:
    row = Row(
        layout="tree",
        shape=shape.name,
        base=str(base),
        case=case,
        device=config.device,
        dtype="bfloat16" if config.device == "cuda" else "float32",
        budget=16_384 if config.device == "cuda" else 2048,
        gradients=str(config.scratch / "reference.pt"),
        tau_bench=str(config.tau_bench) if config.tau_bench else None,
        checkpointing=None,
    )
    # In float32 a row per call of a real model takes minutes; in 16 bits it stands in the table, compared as well.
    layout = "row per call" if config.toy else "tree, block by block"
    reference: dict[str, Any] = {"missing": "twice the weights of such a mixture leave no room for a step"}
    if config.toy or not shape.experts:
        reference = _measured(config, replace(row, layout=layout, dtype="float32", steps=1))
    if "seconds" not in reference:
        table.note(f"no reference in float32: {reference.get('failed') or reference.get('missing')}")
    found: dict[str, dict[str, Any]] = {}
    report = config.out / PROFILE
    for layout in layouts:
        gradients = config.scratch / "gradients.pt"
        gradients.unlink(missing_ok=True)
        profile = None if report.exists() else str(report)  # of the first row alone: it is the most telling
        got = _measured(config, replace(row, layout=layout, gradients=str(gradients), profile=profile))
        if "missing" in got or "failed" in got:
            table.add(layout, got["missing"] if "missing" in got else "failed: " + got["failed"])
            continue
        found[layout] = got
        if got["compiled"]:
            table.note(f"{layout}: {got['compiled']} graphs were compiled in the step whose time this is")
        apart = None
        if "seconds" in reference:
            apart = _apart(config.scratch / "reference.pt", gradients)
        table.add(
            layout,
            f"{got['trained']:.0f}",
            f"{got['tokens']:.0f}",
            f"{got['seconds']:.2f}",
            f"{got['trained'] / got['seconds']:.0f}",
            f"{100 * got['operations'] / got['seconds'] / rate:.1f}",
            f"{got['peak_gib']:.1f}",
            "-" if got["kept"] is None else f"{got['kept']}/{shape.layers}",
            "no reference" if apart is None else f"{apart:.0e}",
        )
    if "row per call" in found:
        speed = {layout: got["trained"] / got["seconds"] for layout, got in found.items()}
        ratios = ", ".join(f"{layout} {one / speed['row per call']:.1f}x" for layout, one in speed.items())
        table.note(f"trained tokens/s by those of a row per call: {ratios}")


def _measured(config: Config, row: Row) -> dict[str, Any]:
    """The figures of a row from a process of its own; {"missing": ...} or {"failed": ...} where there are none.

    At toy size our own rows are measured in this process: a start of torch takes longer than all of them.
    """
    if config.toy and row.layout in OURS:
        return measure(row)
    command = [sys.executable, "-m", "benchmarks.card.learner_row", as_json(row)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=min(config.left_s, 240), check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": "not done in time"}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    with (config.out / "a.errors.txt").open("a") as file:
        file.write(f"{row}\n{done.stderr}\n")
    return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]}


def _apart(reference: Path, gradients: Path) -> float | None:
    """The norm of the difference of two sets of gradients by the norm of the first; None where names differ."""
    import torch

    wanted, got = torch.load(reference), torch.load(gradients)
    if wanted.keys() != got.keys():
        return None
    squares = [(float(((got[name] - wanted[name]) ** 2).sum()), float((wanted[name] ** 2).sum())) for name in wanted]
    return (sum(one for one, _ in squares) / sum(other for _, other in squares)) ** 0.5
