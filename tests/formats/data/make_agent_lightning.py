"""Made agent_lightning.jsonl and agent_lightning_hook.jsonl: rollouts that a server of Agent Lightning 1.0.2 stored,
written by the two programs of docs/formats/rollouts.md. Its rollout manager makes them and runs the hook; an agent
calls a tool through the gateway, before a stand-in for vLLM.

    python3.12 -m venv agl && agl/bin/pip install agentlightning==1.0.2 numpy
    agl/bin/python tests/formats/data/make_agent_lightning.py
"""

import json
import os
import re
import shutil
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from agentlightning.hooks import load_hooks
from agentlightning.server.app import create_app
from agentlightning.verl.agl_rollout_manager import AglRolloutManager
from omegaconf import OmegaConf

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "formats" / "rollouts.md"
KEY = "KEY"
CALLED = [{"id": "c1", "type": "function", "function": {"name": "times", "arguments": '{"a": 6, "b": 7}'}}]
TOOL = {"type": "function", "function": {"name": "times", "parameters": {"type": "object"}}}


class Vllm(BaseHTTPRequestHandler):
    """Answers as vLLM does that is asked for token ids: first with a call, then with the answer."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["messages"][-1]["content"] == "fail":
            error = {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}
            return self._say(400, {"error": error})
        told = asked["messages"][-1]["role"] == "tool"
        message = {"role": "assistant", "content": "42" if told else None, "tool_calls": [] if told else CALLED}
        ids = [7] if told else [4, 5]
        logprobs = {"content": [{"token": "", "logprob": -id / 8, "bytes": [], "top_logprobs": []} for id in ids]}
        choice = {
            "index": 0, "message": message, "finish_reason": "stop" if told else "tool_calls", "stop_reason": None,
            "token_ids": ids, "logprobs": logprobs if asked.get("logprobs") else None,
        }  # fmt: skip
        prompt = [1, 2, 3, 4, 5, 6] if told else [1, 2, 3]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        return self._say(
            200,
            {
                "id": f"chatcmpl-{len(prompt)}", "object": "chat.completion", "created": int(time.time()),
                "model": asked["model"], "choices": [choice], "usage": usage, "prompt_token_ids": prompt,
            },
        )  # fmt: skip

    def _say(self, status: int, body: Any) -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


def play(server: httpx.Client, rollout: dict[str, Any], number: int) -> None:
    """What a controller and an agent do with a rollout."""
    id, mode = rollout["rollout_id"], "train" if rollout["is_train"] else "val"
    server.patch(f"/api/rollouts/{id}", json={"status": {"state": "running", "last_attempt_id": "0"}})
    url = f"/proxy/rollout/{id}/attempt/0/mode/{mode}/openai/v1/chat/completions"
    said = [{"role": "user", "content": rollout["input"]["question"]}]
    while (said[-1]["role"], bool(said[-1].get("tool_calls"))) != ("assistant", False):
        answer = server.post(url, json={"model": "any", "messages": said, "tools": [TOOL]})
        if answer.status_code != 200:
            break
        said.append({k: v for k, v in answer.json()["choices"][0]["message"].items() if v})
        if said[-1].get("tool_calls"):
            said.append({"role": "tool", "tool_call_id": "c1", "content": "42"})
    events = f"/api/rollouts/{id}/attempt/0/events"
    failed = said[0]["content"] == "fail"
    if not failed:
        server.post(events, json={"event_type": "note", "data": {"seen": number}})
        for value in (0.0, float(number % 2)):
            server.post(events, json={"event_type": "reward", "data": {"value": value, "source": "agent"}})
    state = {"state": "failed", "error_message": "exit 1"} if failed else {"state": "succeeded"}
    server.patch(f"/api/rollouts/{id}", json={"status": state})


def agents(server: httpx.Client, ended: threading.Event) -> None:
    number = 0
    while not ended.is_set():
        for rollout in server.get("/api/rollouts", params={"state_in": ["queuing"]}).json():
            number += 1
            play(server, rollout, number)
        time.sleep(0.05)


if __name__ == "__main__":
    model = HTTPServer(("127.0.0.1", 0), Vllm)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    config = {
        "key": KEY,
        "default_proxy": {"model_name": "Qwen/Qwen3-4B", "train": {"temperature": 1.0}, "val": {"temperature": 0.7}},
    }
    gateway = uvicorn.Server(uvicorn.Config(create_app(OmegaConf.create(config)), port=8080, log_level="error"))
    threading.Thread(target=gateway.run, daemon=True).start()
    while not gateway.started:
        time.sleep(0.05)
    hook, export = (
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "rollouts.jsonl" in text
    )
    base = "http://127.0.0.1:8080"
    server, ended = (
        httpx.Client(base_url=base, headers={"authorization": f"Bearer {KEY}"}, timeout=60),
        threading.Event(),
    )
    threading.Thread(target=agents, args=(server, ended), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("keep.py").write_text(hook)
        manager = AglRolloutManager(
            agl_base_url=base, agl_key=KEY, model="Qwen/Qwen3-4B", step=1, train_rollout_n=2, poll_interval_seconds=0.1,
            hooks=load_hooks("keep.py"),
        )  # fmt: skip
        manager.register_model([f"127.0.0.1:{model.server_port}"])
        data = {"question": ["6 x 7?"], "answer": ["42"]}
        manager._delete_rollout = lambda _id: None  # so that the API has them too
        manager.enqueue_and_wait_until_completed(data, is_train=True)
        manager.enqueue_and_wait_until_completed(data, is_train=False)
        manager.enqueue_and_wait_until_completed({"question": ["fail"]}, is_train=True)
        shutil.move("rollouts.jsonl", HERE / "agent_lightning_hook.jsonl")
        exec(compile(export, "export", "exec"), {})
        shutil.move("rollouts.jsonl", HERE / "agent_lightning.jsonl")
    ended.set()
