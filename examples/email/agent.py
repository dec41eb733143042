"""An agent that answers questions about an inbox by three tools: search, read, answer. Plain `openai` client code."""

import asyncio
import json
import os
import sys

from inbox import Inbox
from openai import AsyncOpenAI

SYSTEM = "You answer questions about an inbox. Search it, read the mail that says it, and answer."
MAX_TURNS = 5


def tool(name: str, parameter: str, description: str) -> dict:
    """A tool that takes one text."""
    properties = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": properties}}


TOOLS = [
    tool("search", "words", "Mails in which all these words are: the subject and the number of each."),
    tool("read", "number", "The text of a mail, by its number in the last search."),
    tool("answer", "text", "Answer the question. This ends the conversation."),
]


class InboxTools:
    """What the tools say of an inbox. `read` has the ids of the mails that were read."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._found: dict[str, str] = {}
        self.read: list[str] = []

    def call(self, name: str, argument: str) -> str:
        """What a tool says."""
        if name == "search":
            found = self._inbox.search(argument)
            self._found = {str(number): id for number, (id, _) in enumerate(found, 1)}
            return "\n".join(f"{subject}: {number}" for number, (_, subject) in enumerate(found, 1)) or "nothing found"
        if name == "read" and argument in self._found:
            self.read.append(self._found[argument])
            return str(self._inbox.read(self.read[-1]))
        return "there is no such mail" if name == "read" else "there is no such tool"


async def ask(client: AsyncOpenAI, model: str, inbox: Inbox, question: str) -> tuple[str, list[str]]:
    """The answer ("" where none was given in time), and the ids of the mails that were read for it."""
    messages: list = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    tools = InboxTools(inbox)
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=64)
        reply = completion.choices[0].message
        if not reply.tool_calls:
            break
        messages.append(reply)
        for made in reply.tool_calls:
            name, argument = called(made.function)
            if name == "answer":
                return argument, tools.read
            messages.append({"role": "tool", "tool_call_id": made.id, "content": tools.call(name, argument)})
    return "", tools.read


def called(function) -> tuple[str, str]:
    """A tool call's name and its one argument; what makes no sense is answered, not raised."""
    try:
        [argument] = json.loads(function.arguments).values()
    except (ValueError, AttributeError):
        return "", ""
    return function.name, str(argument)


async def main() -> None:
    async with AsyncOpenAI() as client:
        text, read = await ask(client, os.environ.get("MODEL", "policy:latest"), Inbox(), " ".join(sys.argv[1:]))
    print(f"{text or 'no answer'} (mails read: {', '.join(read) or 'none'})")


if __name__ == "__main__":
    asyncio.run(main())
