"""The daemon's numbers in Prometheus' text format, and a small server for them on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from arttrace.store.server.metrics_text import MetricsText
from arttrace.store.server.responses import METRICS
from arttrace.system.errors import TrainingError
from trainer.daemon.state import FAILED, STARTING, STOPPED, DaemonState
from trainer.grpo.metrics import OF_AN_AGENT
from trainer.step.phases import Phase

_STATES = (STARTING, *Phase, STOPPED, FAILED)
_PHASE_SECONDS = {f"{phase}_s": str(phase) for phase in Phase}


def render(state: DaemonState) -> bytes:
    """All of them, each labelled with the policy; those of the last step are `arttrace_train_last_...`."""
    text = MetricsText("arttrace_train_")

    def gauge(name: str, help: str, value: float, **labels: str) -> None:
        text.add("gauge", name, help, value, policy=state.policy, **labels)

    gauge("step", "Newest version of the policy.", state.step)
    for known in _STATES:
        gauge("state", "1 for the state that the daemon is in.", int(state.state == known), state=known)
    gauge("state_since_seconds", "When it entered it, in Unix time.", state.since_ns / 1e9)
    gauge("in_trouble", "1 while it waits for something that is out of order.", int(state.in_trouble))
    gauge("groups_ready", "Groups that are ready.", state.queue.ready)
    gauge("groups_waiting", "Groups that wait for more runs.", state.queue.waiting)
    gauge("groups_paused", "Groups of scenarios that are skipped for a while.", state.queue.paused)
    gauge("groups_unscored", "Groups that wait since the judge failed for them.", state.queue.unscored)
    for reason, count in sorted(state.queue.left_out.items()):
        gauge("runs_left_out", "Runs that do not count.", count, reason=reason)
    gauge("rounds_skipped", "Rounds in a row without a version.", state.skips)
    for name, value in sorted(state.last.items()):
        if phase := _PHASE_SECONDS.get(name):
            gauge("last_phase_seconds", "How long a phase of the last step took.", value, phase=phase)
    for name, value in sorted(state.last.items()):
        if name.startswith(OF_AN_AGENT):
            mean = "Mean of an agent's own rewards in the last step."
            gauge("last_agent_reward_mean", mean, value, agent=name.removeprefix(OF_AN_AGENT))
        elif name not in _PHASE_SECONDS:
            gauge(f"last_{name}", "Of the last step.", value)
    return text.encode()


@contextmanager
def serving_metrics(metrics: Callable[[], bytes], port: int) -> Iterator[int]:
    """Answers GET /metrics on 127.0.0.1 in a thread; port 0 takes a free one. Gives the port.

    Raises TrainingError when the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = metrics() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("content-type", METRICS if found else "text/plain")
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
