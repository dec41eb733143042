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
    tool("search", "words", "Mails in which all these words are: the id and the subject of each."),
    tool("read", "id", "The text of a mail."),
    tool("answer", "text", "Answer the question. This ends the conversation."),
]


async def ask(client: AsyncOpenAI, model: str, inbox: Inbox, question: str) -> tuple[str, list[str]]:
    """The answer ("" where none was given in time), and the ids of the mails that were read for it."""
    messages: list = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    read: list[str] = []
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=64)
        reply = completion.choices[0].message
        if not reply.tool_calls:
            break
        messages.append(reply)
        for made in reply.tool_calls:
            name, argument = called(made.function)
            if name == "answer":
                return argument, read
            if name == "read":
                read.append(argument)
            messages.append({"role": "tool", "tool_call_id": made.id, "content": result(inbox, name, argument)})
    return "", read


def called(function) -> tuple[str, str]:
    """A tool call's name and its one argument; what makes no sense is answered, not raised."""
    try:
        [argument] = json.loads(function.arguments).values()
    except (ValueError, AttributeError):
        return "", ""
    return function.name, str(argument)


def result(inbox: Inbox, name: str, argument: str) -> str:
    """What a tool says."""
    if name == "search":
        return "\n".join(f"{id}: {subject}" for id, subject in inbox.search(argument)) or "nothing found"
    if name == "read":
        return inbox.read(argument) or "there is no such mail"
    return "there is no such tool"


async def main() -> None:
    async with AsyncOpenAI() as client:
        text, read = await ask(client, os.environ.get("MODEL", "policy:latest"), Inbox(), " ".join(sys.argv[1:]))
    print(f"{text or 'no answer'} (mails read: {', '.join(read) or 'none'})")


if __name__ == "__main__":
    asyncio.run(main())
