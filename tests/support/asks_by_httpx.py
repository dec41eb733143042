"""What a program of a test asks a model with where the client is not the point: to import httpx takes a tenth of what
it takes to import a provider's SDK, which is most of such a program's time."""

from __future__ import annotations

from typing import Final

ASK: Final = """
import os
import httpx
def ask_at(url, text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    answer = httpx.post(url + "/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]
def ask(text):
    return ask_at(os.environ["OPENAI_BASE_URL"], text)
"""
"""The beginning of its source."""

CAPTURED: Final = {"ARTTRACE_CAPTURE_HTTP": "1"}
"""In its environment, so that its calls are captured as an SDK's are."""
