"""What a GPU does with the learner, the serving engine and the loop between them, in one command.

    python benchmarks/gpu.py [--quick] [--section a ...]
    python benchmarks/gpu.py --cpu

Sections are independent: each runs in a process of its own within its time budget (less than ten minutes; all of them
less than thirty), prints its table row by row, and leaves it in --out as SECTION.txt even if it is stopped. A library
that is missing is said in the table and ends nothing; bundles of libraries that lie in --bundles
(benchmarks/card/bundle.py makes them) are unpacked and used. Models have random weights in real shapes, or are trained
from scratch; no network is needed. With --cpu everything runs at toy size, which proves the programs, not the speed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # a machine with a GPU may hold the clone alone, with nothing installed from it

from arttrace.system.processes import collect_garbage_seldom  # noqa: E402
from benchmarks.card.bundle import FOLDER, PYTHON, unpack  # noqa: E402
from benchmarks.card.frame import Config, run_here, run_section  # noqa: E402
from benchmarks.card.sections import SECTIONS  # noqa: E402

UNPACKED = Path(tempfile.gettempdir()) / "arttrace-card-bundles"
"""Where bundles are unpacked: they stay for the next call, which may bring others."""
TAU_BENCH = ROOT.parent / "shared" / "data" / "tau-bench-gpt-4o-airline.json.gz"


def main() -> None:
    """Runs the sections asked for, one after the other; exits with 1 where one failed."""
    collect_garbage_seldom()  # as the commands do
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller shapes and fewer rows")
    parser.add_argument("--cpu", action="store_true", help="toy size on the CPU")
    parser.add_argument(
        "--section",
        action="append",
        choices=[section.key for section in SECTIONS],
        metavar="KEY",
        help="; ".join(f"{section.key}: {section.title}" for section in SECTIONS) + " (default: all)",
    )
    parser.add_argument(
        "--layout", action="append", default=[], help="a row of section a, as its table names it (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="where tables go (default gpu-results)")
    parser.add_argument("--tau-bench", type=Path, default=TAU_BENCH, metavar="FILE", help="the runs, if they are there")
    parser.add_argument("--bundles", type=Path, default=ROOT / FOLDER, metavar="DIR", help=f"default {FOLDER}")
    parser.add_argument("--here", nargs=2, metavar=("SCRATCH", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [section for section in SECTIONS if given.section is None or section.key in given.section]
    if given.here:
        config = Config(
            device="cpu" if given.cpu else "cuda",
            quick=given.quick,
            out=out,
            scratch=Path(given.here[0]),
            tau_bench=given.tau_bench if given.tau_bench.exists() else None,
            ends_at=time.monotonic() + float(given.here[1]),
            layouts=tuple(given.layout),
        )
        run_here(chosen[0], config)
        return
    fits = "{}.{}".format(*sys.version_info) == PYTHON
    sites = unpack(given.bundles, UNPACKED) if fits else []
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    # The clone too, which processes of processes need: `arttrace serve`, wherever it is started.
    os.environ["PYTHONPATH"] = os.pathsep.join([*known, *map(str, sites), str(ROOT)])
    if sites:
        os.environ.setdefault(
            "VLLM_USE_FLASHINFER_SAMPLER", "0"
        )  # vLLM takes FlashInfer for installed; no bundle has it
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # transformers' bars would cut the tables up
    if given.cpu:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # at toy size a second thread costs more than it does
    passed_on = ["--out", str(out), "--tau-bench", str(given.tau_bench.resolve())]
    passed_on += ["--cpu"] * given.cpu + ["--quick"] * given.quick + [f"--layout={name}" for name in given.layout]
    sound = True
    for section in chosen:
        with tempfile.TemporaryDirectory(prefix="arttrace-gpu-") as scratch:
            command = [sys.executable, str(Path(__file__).resolve()), "--section", section.key]
            command += ["--here", scratch, str(section.budget_s)]
            sound &= run_section(section, [*command, *passed_on], out)
    raise SystemExit(0 if sound else 1)


if __name__ == "__main__":
    main()
