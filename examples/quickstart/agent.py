"""An agent with two tools, and what makes it training data: `@arttrace.trajectory` on its entry function."""

import json
import os
import sys

from openai import OpenAI

import arttrace

SYSTEM = "You check the price of one item. A service may be out of date."
ITEM = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": ITEM}} for n in ("list_price", "live_price")]


def quote(service: str, item: str) -> str:
    right = "live_price" if item.startswith(("fresh", "local", "imported")) else "list_price"
    return f"price {len(item) % 9 + 1} valid" if service == right else f"price {len(item) % 7 + 1} expired"


@arttrace.trajectory
def answer(question: str) -> str:
    model = os.environ.get("MODEL", "policy:latest")
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(4):
        reply = OpenAI().chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=64)
        messages.append(reply.choices[0].message)
        for made in messages[-1].tool_calls or ():
            result = quote(made.function.name, json.loads(made.function.arguments)["item"])
            messages.append({"role": "tool", "tool_call_id": made.id, "content": result})
        if not reply.choices[0].message.tool_calls:
            break
    return reply.choices[0].message.content


if __name__ == "__main__":
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        print(answer(sys.argv[1]))
