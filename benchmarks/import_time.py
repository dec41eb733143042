"""What `import arttrace` and applying a decorator cost beyond OpenTelemetry's own import.

    python benchmarks/import_time.py [rounds]

Each round starts fresh interpreters, in turn: one that imports OpenTelemetry's SDK, two that import arttrace after it,
one of them to decorate a function, and for scale one that imports openai. Printed are the medians of the rounds. All
find their modules compiled, as installed packages are, by a first round that does not count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

_TIMED = "import time; start = time.perf_counter(); {}; print((time.perf_counter() - start) * 1000)"
_PROGRAMS = {
    "OpenTelemetry's SDK": _TIMED.format("import opentelemetry.sdk.trace"),
    "arttrace, beyond it": "import opentelemetry.sdk.trace; " + _TIMED.format("import arttrace"),
    "arttrace, decorator applied, beyond it": "import opentelemetry.sdk.trace; "
    + _TIMED.format("import arttrace; arttrace.trajectory(lambda: None)"),
    "openai, for scale": _TIMED.format("import openai"),
}


def main(rounds: int) -> None:
    """Measure and print."""
    times: dict[str, list[float]] = {name: [] for name in _PROGRAMS}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as compiled:
        environment["PYTHONPYCACHEPREFIX"] = compiled
        for _ in range(rounds + 1):
            for name, program in _PROGRAMS.items():
                command = [sys.executable, "-c", program]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                times[name].append(float(done.stdout))
    medians = {name: statistics.median(each[1:]) for name, each in times.items()}
    base = medians["OpenTelemetry's SDK"]
    for name, median in medians.items():
        print(f"{name:40} {median:7.1f} ms {median / base:6.2f} x")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("rounds", nargs="?", type=int, default=15)
    main(options.parse_args().rounds)
