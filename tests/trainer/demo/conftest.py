"""The example agent driven by a script instead of a server, with each of its calls recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from trainer.demo.model.demonstrations import Demonstration
from trainer.demo.scenarios import MARKET, load_world

Script = Callable[[list[dict[str, Any]], list[dict[str, Any]]], dict[str, Any]]


@dataclass
class ScriptedAgent:
    """The agent module, and the calls it made."""

    module: ModuleType
    calls: list[Demonstration] = field(default_factory=list)

    def play(self, script: Script) -> None:
        """From now on `script` answers the agent's calls."""

        async def create(*, messages: list[Any], tools: list[dict[str, Any]], **_: Any) -> ChatCompletion:
            sent = [m if isinstance(m, dict) else m.model_dump(exclude_none=True) for m in messages]
            reply = script(sent, tools)
            self.calls.append(Demonstration(sent, tools, reply))
            choice = {"index": 0, "finish_reason": "stop", "message": reply}
            return ChatCompletion.model_validate(
                {"id": "1", "object": "chat.completion", "created": 0, "model": "script", "choices": [choice]}
            )

        self.module.client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


@pytest.fixture
def world() -> ModuleType:
    return load_world()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAgent]:
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    monkeypatch.syspath_prepend(str(MARKET))
    for name in ("agent", "world"):  # another example's
        monkeypatch.delitem(sys.modules, name, raising=False)
    import agent as module

    yield ScriptedAgent(module)
    for name in ("agent", "world"):
        sys.modules.pop(name, None)
