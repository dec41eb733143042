"""A server that speaks vLLM's `/v1/models`, `/detokenize` and `/v1/completions` for a tiny model, and keeps what it was
asked. `trouble` decides by path and number of the request on it: a status and a body in place of the answer;
`impossible` tokens are rated as vLLM does at probability 0."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Trouble = Callable[[str, int], tuple[int, Any] | None]


@dataclass
class TeacherSite:
    url: str
    prompts: list[list[int]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)


@contextmanager
def teacher_site(
    model: Path,
    trouble: Trouble = lambda path, number: None,
    *,
    impossible: Collection[int] = (),
    cards: tuple[dict[str, Any], ...] = ({"id": "better", "max_model_len": 512},),
) -> Iterator[TeacherSite]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    lock = threading.Lock()

    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/models":
            return {"data": list(cards)}
        if path == "/detokenize":
            return {"prompt": tokenizer.decode(body["tokens"])}
        assert (body["prompt_logprobs"], body["max_tokens"]) == (0, 1)
        ids = body["prompt"]
        with lock, torch.no_grad():
            site.prompts.append(ids)
            logps = torch.log_softmax(loaded(torch.tensor([ids])).logits[0].double(), -1)
        rated = [-9999.0 if id in impossible else float(logps[at, id]) for at, id in enumerate(ids[1:])]
        of_ids = [{str(id): {"logprob": value, "rank": 1}} for id, value in zip(ids[1:], rated, strict=True)]
        return {"choices": [{"index": 0, "prompt_logprobs": [None, *of_ids]}]}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
            with lock:
                site.asked[self.path] += 1
                site.keys.add(self.headers.get("authorization"))
                status, said = trouble(self.path, site.asked[self.path]) or (200, None)
            content = said if isinstance(said, bytes) else json.dumps(said or answer(self.path, body)).encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # of who no longer waits
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, format: str, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = TeacherSite(f"http://127.0.0.1:{server.server_port}/v1")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
