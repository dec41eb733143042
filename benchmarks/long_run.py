"""What one long run costs, part by part: in the agent's process, on the wire, in the collector, in the store, to read.

    python benchmarks/long_run.py [TURNS ...] [--turn 400] [--token-ids] [--spool]

For each number of turns an agent asks a scripted server, in a process of its own, in one conversation: every call's
prompt is all of what came before it, and a turn adds `--turn` characters. First with capture, its spans delivered to a
collector, which is timed until the store has them all; then without capture. What reads the run comes after that, each
command in a process of its own. `--token-ids` has the server give token ids and log-probabilities, as vLLM does.

`--spool` measures the spool instead: the agent leaves its records there, and they are appended to two journals, one
that stores each whole and one that stores once what it has in common with one before it, in turns, which are read
again. A figure is the median of the CPU time of a record, the ratio that of the pairs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from formats import run_command

_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "theta", "kappa", "lambda", "omicron", "sigma", "tau")
_READ = (
    ("ls",),
    ("show", "ID"),
    ("show", "ID", "--json"),
    ("show", "ID", "--raw"),
    ("show", "ID", "--tokens"),
    ("export", "-o", "out.jsonl"),
    ("dataset", "--format", "trl-prompt-completion", "-o", "out"),
    ("dataset", "--format", "verl-sft", "-o", "out"),
    ("dataset", "--format", "atif", "-o", "out"),
)


def words(size: int, seed: object) -> str:
    """A text of about so many characters."""
    rng = random.Random(str(seed))
    return " ".join(rng.choice(_WORDS) for _ in range(max(1, size // 6)))


class Posts(BaseHTTPRequestHandler):
    """Takes requests with a body, one after the other on a connection, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def body(self) -> bytes:
        """What was sent."""
        return self.rfile.read(int(self.headers["content-length"]))


# --- the server ---------------------------------------------------------------------------------------------------


def serve(token_ids: bool, turn: int) -> None:
    """Answers each call with a tool call and some text, until its standard input ends."""
    ids = [1]

    class Handler(Posts):
        def do_POST(self) -> None:
            body = self.body()
            number = body.count(b'"tool_call_id"')
            function = {"name": "search", "arguments": json.dumps({"query": words(30, number)})}
            message = {
                "role": "assistant",
                "content": words(turn // 4, -number),
                "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
            }
            choice: dict[str, Any] = {"index": 0, "finish_reason": "tool_calls", "message": message}
            answer = {"id": f"c{number}", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            if token_ids:
                count = (number + 1) * turn // 4
                while len(ids) < count:
                    ids.append((ids[-1] * 48271) % 150_001)
                sampled = turn // 16
                choice["token_ids"] = ids[count - sampled : count]
                choice["logprobs"] = {
                    "content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}] * sampled
                }
                answer["prompt_token_ids"] = ids[: count - sampled]
            written = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    sys.stdin.read()


# --- the agent ----------------------------------------------------------------------------------------------------


def agent(url: str, turns: int, turn: int) -> None:
    """One conversation; prints what the calls took and what the process held."""
    import openai

    import arttrace

    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "system", "content": words(800, "system")}, {"role": "user", "content": "Go on."}]
    own: list[float] = []

    @arttrace.trajectory
    def run() -> None:
        for number in range(turns):
            began = time.thread_time()
            # As they are: the client's own look at each message takes 0.13 ms, at every call anew.
            asked = client.chat.completions.create(model="m", messages=[], extra_body={"messages": messages})
            own.append(time.thread_time() - began)
            messages.append(asked.choices[0].message.model_dump(exclude_none=True))
            result = words(turn - turn // 4 - 30, ("result", number))
            messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": result})

    began = time.monotonic()
    run()
    ran = time.monotonic() - began
    spooled = arttrace.flush()
    flushed = time.monotonic() - began
    tenth = max(1, turns // 10)
    cpu, peak = process_use(os.getpid())
    print(
        json.dumps(
            {
                "run_s": ran,
                "flush_s": flushed,
                "flushed": spooled,
                "cpu_s": cpu,
                "MiB": peak,
                "first_ms": 1000 * sorted(own[:tenth])[tenth // 2],
                "last_ms": 1000 * sorted(own[-tenth:])[tenth // 2],
                "prompt_MB": len(json.dumps(messages)) / 1e6,
            }
        ),
        flush=True,
    )


# --- between the agent and the collector --------------------------------------------------------------------------


class Relay:
    """Passes requests on to the collector, and counts their bytes as sent and unpacked."""

    def __init__(self, address: str) -> None:
        self.sent = self.plain = 0
        relay = self

        class Handler(Posts):
            def do_POST(self) -> None:
                body = self.body()
                relay.sent += len(body)
                packed = self.headers.get("content-encoding") == "gzip"
                relay.plain += len(gzip.decompress(body)) if packed else len(body)
                headers = {name: value for name, value in self.headers.items() if name.lower().startswith("content")}
                asked = urllib.request.Request(f"{address}{self.path}", body, headers)
                try:
                    answer = urllib.request.urlopen(asked)
                except urllib.error.HTTPError as refusal:  # it has as much as it takes
                    answer = refusal
                with answer:
                    said = answer.read()
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        if name.lower() in ("content-type", "content-length", "retry-after", "x-arttrace-collector"):
                            self.send_header(name, value)
                self.end_headers()
                self.wfile.write(said)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


# --- the collector ------------------------------------------------------------------------------------------------


def process_use(pid: int) -> tuple[float, int]:
    """CPU seconds of a process and its children, living and gone, and the most MiB that one of them held."""
    cpu, peak = 0.0, 0
    ticks = os.sysconf("SC_CLK_TCK")
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        try:
            stat = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{one}/status").read_text()
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
        cpu += sum(map(int, stat[11:15])) / ticks
        peak = max(peak, int(status.partition("VmHWM:")[2].split()[0]) >> 10)
    return cpu, peak


def metric(address: str, name: str) -> float:
    """One of the collector's metrics."""
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


# --- a measurement ------------------------------------------------------------------------------------------------


def step(folder: Path, *arguments: str) -> None:
    """Runs a command; prints seconds and peak memory."""
    os.chdir(folder)
    began = time.monotonic()
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    run_command(folder, *arguments)
    sys.stdout.flush()
    os.dup2(kept, 1)
    seconds, (_, peak) = time.monotonic() - began, process_use(os.getpid())
    print("\n" + json.dumps({"seconds": seconds, "MiB": peak}), flush=True)


def measured(*arguments: str, **more: str) -> dict[str, Any]:
    """What this program, in a process of its own, says last."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **more},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_command_here(data: Path, *arguments: str) -> None:
    """A command of arttrace on a data directory."""
    command = [sys.executable, "-m", "arttrace", *arguments, "--dir", str(data)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


@contextmanager
def model_server(turn: int, *, token_ids: bool) -> Iterator[str]:
    """The address of a model's stand-in, a process that ends with the block."""
    command = [sys.executable, __file__, "--serve", str(int(token_ids)), str(turn)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()


def spool_of(turns: int, turn: int, *, token_ids: bool) -> None:
    """Has an agent leave its records in a spool, and prints what they cost there."""
    from arttrace.system.journal import list_segments, read_segment

    with tempfile.TemporaryDirectory() as temporary, model_server(turn, token_ids=token_ids) as url:
        measured("--agent", url, str(turns), str(turn), ARTTRACE_DIR=temporary)
        payloads = (
            payload for segment in list_segments(Path(temporary, "spool")) for _, payload in read_segment(segment.path)
        )
        print(f"{turns} turns{', token ids' if token_ids else ''}", flush=True)
        compare_journals(payloads, Path(temporary))


def compare_journals(payloads: Iterable[bytes], folder: Path) -> None:
    """Appends payloads to a journal that stores each whole and to one that shares, and reads both."""
    from arttrace.system.journal import JournalWriter, list_segments, read_segment

    ways = {"whole": False, "sharing": True}
    writers = {
        way: JournalWriter(folder / way, fsync_interval_s=None, sharing=sharing) for way, sharing in ways.items()
    }
    appended: dict[str, list[float]] = {way: [] for way in ways}
    given = 0
    for number, payload in enumerate(payloads):
        given += len(payload)
        for way in sorted(ways, reverse=bool(number % 2)):
            began = time.thread_time()
            writers[way].append(payload)
            appended[way].append(time.thread_time() - began)
    pairs = [one / other for one, other in zip(appended["sharing"], appended["whole"], strict=True)]
    print(
        f"  {len(pairs)} records, {given / 1e6:.1f} MB; sharing / whole, median of pairs {statistics.median(pairs):.2f}"
    )
    for way, writer in writers.items():
        writer.close()
        segments = list_segments(folder / way)
        size = sum(segment.path.stat().st_size for segment in segments)
        began = time.thread_time()
        count = sum(1 for segment in segments for _ in read_segment(segment.path))
        read = time.thread_time() - began
        costs = 1000 * statistics.median(appended[way]), 1000 * max(appended[way]), 1000 * read / count
        print(
            f"  {way:8} {size / 1e6:8.1f} MB; append {costs[0]:.3f} ms, at most {costs[1]:.1f}; read {costs[2]:.3f} ms",
            flush=True,
        )


def benchmark(turns: int, turn: int, *, token_ids: bool) -> None:
    """Measures and prints."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from collector_process import collecting

    from arttrace.store import Store
    from arttrace.system.paths import DataDir

    print(f"{turns} turns", flush=True)
    with tempfile.TemporaryDirectory() as temporary, model_server(turn, token_ids=token_ids) as url:
        folder = Path(temporary)
        data = DataDir(folder / "data")
        task = ("--agent", url, str(turns), str(turn))
        without = measured(*task, ARTTRACE_DISABLED="1")
        with collecting(data) as (process, address):
            relay = Relay(address)
            began = time.monotonic()
            with_it = measured(*task, ARTTRACE_DIR=str(folder / "agent"), ARTTRACE_ENDPOINT=relay.url)
            run_command_here(folder / "agent", "ship", "--endpoint", relay.url)
            delivered = time.monotonic() - began
            while metric(address, "arttrace_collector_load_lag_seconds") > 0:
                time.sleep(0.1)
            loaded = time.monotonic() - began
            cpu, peak = process_use(process.pid)
            relay.close()
        print(f"  the last prompt        {with_it['prompt_MB']:9.2f} MB")
        for name, unit in (("first_ms", "ms"), ("last_ms", "ms"), ("run_s", "s"), ("cpu_s", "s"), ("MiB", "MiB")):
            print(f"  agent {name:12} {with_it[name]:9.2f} {unit}, without capture {without[name]:9.2f}")
        print(f"  sent to the collector  {relay.sent / 1e6:9.2f} MB, {relay.plain / 1e6:.2f} MB unpacked")
        print(f"  delivered after        {delivered:9.1f} s, in the store after {loaded:.1f} s")
        print(f"  collector              {cpu:9.1f} CPU-s, {peak} MiB", flush=True)
        with Store.open(data) as store:
            [summary] = store.summaries(limit=2)
            size = data.store.stat().st_size / 1e6
            print(f"  store                  {size:9.2f} MB; the run is {summary.incomplete or 'complete'}")
        for arguments in _READ:
            found = measured("--step", str(folder), *(summary.id if one == "ID" else one for one in arguments))
            print(f"  {' '.join(arguments):60} {found['seconds']:6.1f} s {found['MiB']:5} MiB", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--serve", token_ids, turn]:
            serve(token_ids == "1", int(turn))
        case ["--agent", url, turns, turn]:
            agent(url, int(turns), int(turn))
        case ["--step", folder, *arguments]:
            step(Path(folder), *arguments)
        case _:
            options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
            options.add_argument("turns", nargs="*", type=int, default=[100, 500, 1000, 2000])
            options.add_argument("--turn", type=int, default=400, help="characters that a turn adds")
            options.add_argument("--token-ids", action="store_true")
            options.add_argument("--spool", action="store_true", help="what the records cost in the spool")
            given = options.parse_args()
            for number in given.turns:
                (spool_of if given.spool else benchmark)(number, given.turn, token_ids=given.token_ids)
