"""The daemon's numbers in Prometheus' text format, and a small server for them on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from arttrace.errors import TrainingError
from trainer.daemon.state import DaemonState

_KIND = "text/plain; version=0.0.4; charset=utf-8"


def render(state: DaemonState) -> str:
    """All of them; those of the last step are one gauge each."""
    lines: list[str] = []

    def gauge(name: str, help: str, value: float, labels: str = "") -> None:
        if f"# TYPE {name} gauge" not in lines:
            lines.extend((f"# HELP {name} {help}", f"# TYPE {name} gauge"))
        lines.append(f"{name}{labels} {value!r}")

    gauge("arttrace_train_step", "Newest version of the policy.", state.step, f'{{policy="{state.policy}"}}')
    gauge("arttrace_train_state", "1 for the state that the daemon is in.", 1, f'{{state="{state.state}"}}')
    gauge("arttrace_train_state_since_seconds", "When it entered it, in Unix time.", state.since_ns / 1e9)
    gauge("arttrace_train_in_trouble", "1 while it waits for something that is out of order.", int(bool(state.reason)))
    gauge("arttrace_train_groups_ready", "Groups that are ready.", state.queue.ready)
    gauge("arttrace_train_groups_waiting", "Groups that wait for more runs.", state.queue.waiting)
    for reason, count in sorted(state.queue.left_out.items()):
        gauge("arttrace_train_runs_left_out", "Runs that do not count.", count, f'{{reason="{reason}"}}')
    gauge("arttrace_train_rounds_skipped", "Rounds in a row without a version.", state.skips)
    for name, value in sorted(state.last.items()):
        gauge(f"arttrace_train_last_{name}", "Of the last step.", value)
    return "\n".join(lines) + "\n"


@contextmanager
def serving_metrics(state: Callable[[], DaemonState], port: int) -> Iterator[int]:
    """Answers GET /metrics on 127.0.0.1 in a thread; port 0 takes a free one. Gives the port.

    Raises TrainingError when the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = render(state()).encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("content-type", _KIND if found else "text/plain")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise TrainingError(
            f"Port {port} cannot be used for metrics: {error.strerror}.", "Pass another with --metrics-port."
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="arttrace-train-metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
