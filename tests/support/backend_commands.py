"""Commands that speak as `arttrace serve` and `arttrace train` do, without a model, for tests of LocalBackend."""

from __future__ import annotations

from pathlib import Path

import arttrace

COMMANDS = """
import argparse, json, os, signal, sys, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("command")
for name in ("--base-model", "--policy", "--port", "--dir", "--steps"):
    parser.add_argument(name)
parser.add_argument("--json", action="store_true")
parser.add_argument("--orders", action="store_true")
given = parser.parse_args()

def serve():
    if given.policy == "broken":
        sys.exit("no g++ here")
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            print("asked" * 4_000, file=sys.stderr)
            if self.path == "/die":
                print("CUDA is gone", file=sys.stderr, flush=True)
                os._exit(3)
            self.send_response(200 if self.path == "/arttrace/status" else 404)
            self.send_header("content-length", "11")
            self.end_headers()
            self.wfile.write(b'{"step": 3}')
        def log_message(self, *_):
            pass
    server = HTTPServer(("127.0.0.1", int(given.port)), Handler)
    record = json.dumps({"url": f"http://127.0.0.1:{server.server_port}", "policy": given.policy,
                         "base_model": given.base_model, "pid": os.getpid(), "log": "x"})
    path = Path(given.dir) / "serving.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(record, flush=True)
    print("chatter\\\\n" * (0 if given.policy == "quiet" else 100_000), flush=True)
    server.serve_forever()
    path.unlink()

def train():
    print(json.dumps({"id": 0}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "cancel" in order:
            continue
        print("working" * 30_000, file=sys.stderr)
        said = "3 of 9 tokens of the step, 1.0 per second, 6 s left"
        print(json.dumps({"id": order["id"], "said": said}), flush=True)
        print(json.dumps({"id": order["id"], **answer(order)}), flush=True)

def answer(order):
    if "log" in order:
        Path(given.dir, "logged").write_text(json.dumps([order["log"], order["settings"]]))
        return {}
    if "batches" in order:
        with Path(given.dir, "batches").open("a") as file:
            file.write(json.dumps([order["batches"], order["settings"]]) + "\\n")
        return {"steps": [{"version": f"{given.policy}@1", "adapter": "x", "left_out": {"odd": 1}}]}
    if order["settings"].get("loss") == "slow":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(given.dir, "began").touch()
        while not Path(given.dir, "go-on").exists():
            time.sleep(0.01)
        Path(given.dir, "made").touch()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return {}
    if order["settings"].get("loss") == "serverless":
        os.kill(json.loads(Path(given.dir, "serving.json").read_bytes())["pid"], signal.SIGKILL)
        return {"error": "the gateway does not answer"}
    from arttrace.system.paths import DataDir
    from arttrace.store import Store
    with Store.open(DataDir(Path(given.dir))) as store:
        rewarded = [one for one in store.trajectories(unconsumed_by=given.policy) if one.rewards]
    if order["settings"].get("loss") == "death":
        os.kill(os.getpid(), signal.SIGKILL)
    if not rewarded:
        return {"error": "no group has rewards", "hint": "Score them."}
    metrics = {"runs": len(rewarded), "pid": os.getpid()}
    steps = [f"{given.policy}@{step}" for step in range(1, order["settings"]["steps"] + 1)]
    return {"steps": [{"version": version, "adapter": "x", "metrics": metrics} for version in steps]}

{"serve": serve, "train": train}[given.command]()
"""


def running(script: Path) -> str:
    """The program that runs the commands of a script."""
    return f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended counts as gone though nobody took its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@arttrace.trajectory
async def rewarded() -> None:
    arttrace.reward(1.0)
