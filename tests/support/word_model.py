"""A stand-in for `arttrace serve` on 127.0.0.1: it plays a travel planner's model by a script, with words as tokens,
and answers with token ids, log-probabilities and the version of the policy, as the gateway does."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from arttrace.records import semconv

MARK = 1
ANSWERS = (
    "Lisbon in two days: the tile museum, a tram to Alfama, dinner by the river. Hotel Tejo has rooms.",
    "Go to Lisbon. Hotel Tejo has rooms and it will be sunny.",
    "I would rather not plan this.",
)


class Words:
    """Words and the white space before them as tokens, numbered as they come."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"<unk>": 0, "<|turn|>": MARK}
        self._lock = threading.Lock()

    def ids(self, text: str) -> list[int]:
        with self._lock:
            return [self.known.setdefault(word, len(self.known)) for word in re.findall(r"\s*\S+|\s+$", text)]

    def write(self, directory: Path) -> None:
        """A tokenizer.json as models have it beside their weights."""
        directory.mkdir(parents=True, exist_ok=True)
        vocabulary = {word.replace(" ", "\u0120").replace("\n", "\u010a"): id for word, id in self.known.items()}
        (directory / "tokenizer.json").write_text(
            json.dumps(
                {"added_tokens": [], "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocabulary}}
            )
        )


class WordModel(BaseHTTPRequestHandler):
    """One request of the stand-in."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement
    words: Words
    version: str

    def log_message(self, *_: Any) -> None: ...

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = answer(request)
        said = (message["content"] or "") + "".join(
            json.dumps(one["function"]) for one in message.get("tool_calls", ())
        )
        sampled = self.words.ids(said)
        prompt = [id for one in request["messages"] for id in self._ids(one)] + [MARK]
        logprobs = [-0.02 - (id * 7919 % 97) / 30 for id in sampled]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            "token_ids": sampled,
            "logprobs": {
                "content": [{"token": "", "logprob": lp, "bytes": None, "top_logprobs": []} for lp in logprobs]
            },
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled), "total_tokens": len(prompt + sampled)}
        body = {"id": f"c{id(request)}", "object": "chat.completion", "created": 1, "model": request["model"]}
        self._send({**body, "choices": [choice], "usage": usage, "prompt_token_ids": prompt})

    def _ids(self, message: dict[str, Any]) -> list[int]:
        asked = [one["function"] for one in message.get("tool_calls") or ()]
        calls = "".join(json.dumps({name: one[name] for name in ("name", "arguments")}) for one in asked)
        content = message.get("content") or ""
        ids = self.words.ids((content if isinstance(content, str) else json.dumps(content)) + calls)
        return [MARK, *ids] if message["role"] == "assistant" else [*ids, 0]

    def _send(self, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header(semconv.POLICY_VERSION_HEADER, self.version)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the script answers: a planner asks its tools first; a checker answers at once."""
    messages, seed = request["messages"], request.get("seed") or 0
    system = str(messages[0]["content"])
    if system.startswith("You check budgets"):
        return {"role": "assistant", "content": f"A weekend costs about {300 + 10 * seed} euros.", "refusal": None}
    if not any(one["role"] == "tool" for one in messages) and request.get("tools"):
        city = re.findall(r"in (\w+)", json.dumps(messages[1]["content"]))[-1]
        asked = ("search_hotels", "forecast", "ask_budget")
        return {
            "role": "assistant",
            "content": "Let me look that up.",
            "refusal": None,
            "tool_calls": [
                {
                    "id": f"call_{n}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps({"city": city})},
                }
                for n, name in enumerate(asked)
            ],
        }
    return {"role": "assistant", "content": ANSWERS[seed % len(ANSWERS)], "refusal": None}


@contextmanager
def serve_words(version: str = "policy@3") -> Iterator[tuple[str, Words]]:
    """The address of a running stand-in, and its words."""
    words = Words()
    handler = type("Handler", (WordModel,), {"words": words, "version": version})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", words
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
