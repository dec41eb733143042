"""What capture costs per call, beside the bare client and three other tracers of the openai client.

    python benchmarks/capture.py [--quick] [--python PYTHON] [--starts N] [--rounds N]

Each contender runs in an interpreter of its own against one server process; the rounds go around the contenders, in
an order that turns. Where there are two cores the contenders share one and the server has the other, so that a figure
holds what a contender does and not where the scheduler put it. One start of an interpreter differs from the next by
more than a contender costs (where its memory lies), so all are started anew several times. A figure is the median over
the rounds of all starts of the difference to the bare client in the same round. The last lines of a row have
none of that noise: arttrace beside the same process with its hooks taken out, and its hooks alone beside the same, with
nothing decoded, encoded or written behind them.

The rivals record content and send their spans through an ordinary BatchSpanProcessor and OTLP/HTTP exporter to a sink
in the server process; arttrace writes its durable spool to the disk. `total` counts until everything is sent or
written. The rivals' packages are in requirements/benchmarks.txt; those that are not installed are named and left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CONTENDERS = ("bare", "arttrace", "OpenInference", "OpenLLMetry", "OpenTelemetry")
ON, OFF, HOOKS = "arttrace alone", "arttrace alone, hooks taken out", "arttrace alone, nothing recorded"
ALONE = {ON: "in", OFF: "out", HOOKS: "alone"}
CLOCKS = ("user", "total", "wall")
ROWS = {
    "short": ("a short call", 96),
    "tools": ("40 messages with tools", 64),
    "stream": ("a stream of 200 chunks", 12),
    "tokens": ("200 tokens with log-probabilities and ids", 48),
    "parallel": ("32 calls at a time", 128),
}
QUICK_CALLS = 5
STARTS = 9
ROUNDS = 3

Costs = dict[str, list[float]]
"""By clock, microseconds per call of each round."""


@dataclass
class Contender:
    """A running worker."""

    name: str
    process: subprocess.Popen[str]
    hello: dict[str, Any]

    def batch(self, row: str, calls: int, *, hooks: str = "in") -> dict[str, float]:
        """Microseconds per call by clock, with arttrace's hooks `in`, `out`, or `alone`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"row": row, "calls": calls, "hooks": hooks}) + "\n")
        self.process.stdin.flush()
        return {clock: ns / 1000 / calls for clock, ns in _line(self.process).items()}


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a process of the benchmark ended with {process.wait()}: {process.args!r}")
    answer: dict[str, Any] = json.loads(line)
    return answer


@contextmanager
def _process(python: str, script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [python, str(HERE / script), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


def measure(
    contenders: list[Contender], rounds: int, calls: dict[str, int], costs: dict[str, dict[str, Costs]]
) -> None:
    """Add what each round cost to `costs`, by row and contender."""
    for number in range(rounds):
        turn = number % len(contenders)
        for row in ROWS:
            for each in contenders[turn:] + contenders[:turn]:
                for clock, cost in each.batch(row, calls[row]).items():
                    costs[row][each.name][clock].append(cost)


def measure_alone(arttrace: Contender, rounds: int, calls: dict[str, int], costs: dict[str, dict[str, Costs]]) -> None:
    """Add what each round cost one process with its hooks in, taken out, and alone, in an order that turns."""
    ways = list(ALONE.items())
    for row in ROWS:
        arttrace.batch(row, calls[row])
        for number in range(2 * rounds):
            turn = number % len(ways)
            for way, hooks in ways[turn:] + ways[:turn]:
                for clock, cost in arttrace.batch(row, calls[row], hooks=hooks).items():
                    costs[row][way][clock].append(cost)


def added(costs: Costs, bare: Costs, clock: str) -> float:
    """The median over the rounds of the difference to the bare client, in microseconds per call."""
    return statistics.median(mine - its for mine, its in zip(costs[clock], bare[clock], strict=True))


def _table(costs: dict[str, dict[str, Costs]]) -> Iterator[str]:
    for row, (title, _) in ROWS.items():
        bare = costs[row]["bare"]
        base = {clock: statistics.median(bare[clock]) for clock in CLOCKS}
        yield ""
        yield f"{title}: bare {base['user']:.0f} us on the user's thread, {base['wall']:.0f} us wall"
        yield f"  {'':<14}{'user':>9}{'total':>9}{'wall':>9}   of bare (user)   x arttrace (user, total)"
        ours = {clock: added(costs[row]["arttrace"], bare, clock) for clock in CLOCKS}
        for name, its in costs[row].items():
            if name == "bare" or name in ALONE:
                continue
            extra = {clock: added(its, bare, clock) for clock in CLOCKS}
            figures = "".join(f"{extra[clock]:>+9.0f}" for clock in CLOCKS)
            share = f"{1 + extra['user'] / base['user']:>12.2f}"
            ratios = (
                "" if name == "arttrace" else "".join(f"{_ratio(extra[c], ours[c]):>10}" for c in ("user", "total"))
            )
            yield f"  {name:<14}{figures}{share}      {ratios}"
        off = statistics.median(costs[row][OFF]["total"])
        for title, way in (("on and off", ON), ("hooks alone", HOOKS)):
            own = {clock: added(costs[row][way], costs[row][OFF], clock) for clock in CLOCKS}
            figures = "".join(f"{own[clock]:>+9.0f}" for clock in CLOCKS)
            yield f"  {title:<14}{figures}{1 + own['total'] / off:>12.3f} of the process with its hooks taken out"


def _ratio(its: float, ours: float) -> str:
    return f"{its / ours:.1f}" if ours > 0 else "-"


def _kept(contender: Contender, server: str, data: Path) -> str:
    """What one call with tokens left behind, looked for in the bytes that were sent or written."""
    urllib.request.urlopen(f"{server}/sink").read()
    contender.batch("tokens", 1)
    with urllib.request.urlopen(f"{server}/sink") as response:
        sent = response.read()
    if contender.name == "arttrace":
        return _kept_by_arttrace(data)
    found = {"the question": b"Which hill", "the answer": b"seven wizards", "ids": b"151643", "log-probs": b"-0.12345"}
    return ", ".join(f"{what} {'yes' if text in sent else 'no'}" for what, text in found.items())


def _kept_by_arttrace(data: Path) -> str:
    from arttrace.records import semconv
    from arttrace.records.record import decode_record
    from arttrace.records.span import SpanRow
    from arttrace.system.journal import list_segments, read_segment
    from arttrace.system.paths import DataDir

    segments = list_segments(DataDir(data).spool)
    spans = [decode_record(payload) for segment in segments for _, payload in read_segment(segment.path)]
    (call,) = (span for span in spans if isinstance(span, SpanRow) and semconv.TOKEN_IDS in span.attributes)
    found = {
        "the question": semconv.INPUT_MESSAGES,
        "the answer": semconv.OUTPUT_MESSAGES,
        "ids": semconv.TOKEN_IDS,
        "log-probs": semconv.LOGPROBS,
    }
    return ", ".join(f"{what} {'yes' if name in call.attributes else 'no'}" for what, name in found.items())


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: bare and arttrace, one round of 5 calls")
    parser.add_argument("--python", default=sys.executable, help="run the contenders under this interpreter")
    parser.add_argument("--starts", type=int, default=STARTS, help=f"of every interpreter [default: {STARTS}]")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"after each start [default: {ROUNDS}]")
    options = parser.parse_args(arguments)
    names = CONTENDERS[:2] if options.quick else CONTENDERS
    starts, rounds = (1, 1) if options.quick else (options.starts, options.rounds)
    calls = {row: QUICK_CALLS if options.quick else full for row, (_, full) in ROWS.items()}
    costs: dict[str, dict[str, Costs]] = {row: {} for row in ROWS}
    for start in range(starts):
        with ExitStack() as stack:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="arttrace-benchmark-")))
            server = _start_server(stack)
            contenders = list(_start(stack, options.python, names, server, data))
            if start == 0:
                names = [each.name for each in contenders]
                print(f"openai {contenders[0].hello['openai']}, {starts} starts of {rounds} rounds")
                for each in contenders:
                    if each.name != "bare":
                        kept = _kept(each, server, data)
                        print(f"  {each.name:<14} {each.hello['version']:<8} kept of a call: {kept}", flush=True)
                for row in ROWS:
                    costs[row] = {name: {clock: [] for clock in CLOCKS} for name in (*names, *ALONE)}
            for each in contenders:
                for row in ROWS:
                    each.batch(row, QUICK_CALLS)  # to warm up
            measure(contenders, rounds, calls, costs)
            measure_alone(next(each for each in contenders if each.name == "arttrace"), rounds, calls, costs)
    for line in _table(costs):
        print(line)


def _start(stack: ExitStack, python: str, names: Sequence[str], server: str, data: Path) -> Iterator[Contender]:
    for name in names:
        process = stack.enter_context(_process(python, "capture_worker.py", name, server, str(data)))
        hello = _line(process)
        if "missing" in hello:
            print(f"left out: {name} ({hello['missing']}; requirements/benchmarks.txt)")
        else:
            yield Contender(name, process, hello)


def _start_server(stack: ExitStack) -> str:
    process = stack.enter_context(_process(sys.executable, "capture_server.py"))
    assert process.stdout is not None
    return process.stdout.readline().strip()


if __name__ == "__main__":
    main()
