"""What formats cost: rows per second, CPU seconds and peak memory of importing conversations, and of writing them as
training data.

    python benchmarks/formats.py [--answers N] [RUNS ...]

For each number of runs of ten (or N) answers each, imports them from JSON lines, lists the newest, which sums all up,
then writes `trl-prompt-completion` (a row an answer), `atif`, `verl-sft` and the views as Parquet; each step in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def make(path: Path, runs: int, answers: int) -> None:
    with path.open("w") as file:
        for run in range(runs):
            messages = [{"role": "system", "content": "You help."}]
            for turn in range(answers):
                messages.append({"role": "user", "content": f"question {turn} of run {run}, in a line of words"})
                messages.append(
                    {"role": "assistant", "content": f"answer {turn} of run {run}, in another line of words"}
                )
            file.write(json.dumps({"task_id": run // 4, "reward": run % 4 / 3, "messages": messages}) + "\n")


def step(folder: Path, *arguments: str) -> None:
    """Runs a command; prints seconds, CPU seconds and peak memory."""
    began = time.monotonic()
    run_command(folder, *arguments)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime
    print(json.dumps({"seconds": time.monotonic() - began, "cpu": cpu, "MiB": used.ru_maxrss >> 10}))


def run_command(folder: Path, *arguments: str) -> None:
    """Run a command of arttrace in this process, on the data in the folder."""
    from arttrace.commands import main

    sys.argv = ["arttrace", *arguments, "--dir", str(folder / "data")]
    try:
        main()
    except SystemExit as exit:
        if exit.code:
            raise


def measured(folder: Path, *arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--step", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def benchmark(runs: int, answers: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make(folder / "runs.jsonl", runs, answers)
        size = (folder / "runs.jsonl").stat().st_size >> 20
        print(f"{runs} runs of {answers} answers, {size} MiB of JSON lines", flush=True)
        steps = {
            "import": (runs * (answers + 1), "spans", ("import", str(folder / "runs.jsonl"))),
            "ls, the first time": (runs, "runs", ("ls", "--json")),
            **{
                f"dataset {form}": (rows, "rows", ("dataset", "--format", form, "-o", str(folder / "out")))
                for form, rows in (("trl-prompt-completion", runs * answers), ("atif", runs), ("verl-sft", runs))
            },
            "export parquet": (
                runs * (answers + 1),
                "spans",
                ("export", "--format", "parquet", "-o", str(folder / "views")),
            ),
        }
        for name, (count, unit, arguments) in steps.items():
            found = measured(folder, *arguments)
            rate = count / found["seconds"]
            print(
                f"  {name:32} {found['seconds']:7.1f} s {found['cpu']:7.1f} CPU-s {rate:9.0f} {unit}/s"
                f" {found['MiB']:6.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        step(Path(sys.argv[2]), *sys.argv[3:])
    else:
        options = argparse.ArgumentParser(description=__doc__)
        options.add_argument("runs", nargs="*", type=int, default=[1000, 10000])
        options.add_argument("--answers", type=int, default=10)
        given = options.parse_args()
        for number in given.runs:
            benchmark(number, given.answers)
