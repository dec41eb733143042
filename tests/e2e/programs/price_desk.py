"""A price desk as it runs in production: a planner has a checker look into each item, and the checker has two tools.

RAN is a file that notes each tool that really ran, DAY what the tools answer by.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from openai import AsyncOpenAI

import arttrace

client = AsyncOpenAI()
ITEM = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}


def offered(*names):
    return [{"type": "function", "function": {"name": name, "parameters": ITEM}} for name in names]


@arttrace.tool
async def list_price(item):
    return quote("list_price", item)


@arttrace.tool
async def live_price(item):
    return quote("live_price", item)


@arttrace.tool
async def ask_checker(item):
    return await check(item)


@arttrace.agent
async def check(item):
    return await converse(
        "You check the price of one item. A service may be out of date.", item, list_price, live_price
    )


@arttrace.trajectory
async def answer(question):
    return await converse("You quote the prices of two goods. Ask a checker for each of them.", question, ask_checker)


def quote(service, item):
    with Path(os.environ["RAN"]).open("a") as ran:
        ran.write(f"{service} {item}\n")
    price = (len(item) + int(os.environ["DAY"])) % 9 + 1
    right = "live_price" if item.startswith(("fresh", "local", "imported")) else "list_price"
    return f"price {price} {'valid' if service == right else 'expired'}"


async def converse(system, question, *tools):
    """A loop of model calls and tools, those of one turn in parallel, until the model answers in words."""
    by_name = {tool.__name__: tool for tool in tools}
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    for _ in range(3):
        completion = await client.chat.completions.create(
            model="gpt-4o", messages=messages, tools=offered(*by_name), max_tokens=64
        )
        reply = completion.choices[0].message
        messages.append(reply)
        if not reply.tool_calls:
            return reply.content
        results = await asyncio.gather(*(run(by_name, call.function) for call in reply.tool_calls))
        for call, result in zip(reply.tool_calls, results, strict=True):
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    return "no answer"


async def run(tools, function):
    """What a tool gave; a call that makes no sense is answered, not raised."""
    try:
        item = json.loads(function.arguments)["item"]
        tool = tools[function.name]
    except (ValueError, KeyError, TypeError):
        return "unknown"
    return await tool(str(item))


if __name__ == "__main__":
    from price_desk import answer as served  # as its server imports it

    async def serve(questions):
        for question in questions:
            print(await served(question))

    asyncio.run(serve(sys.argv[1:]))
