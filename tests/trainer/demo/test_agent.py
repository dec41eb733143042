"""The example agent: parallel sub-agents, bounded turns, and no exception from what a model may say."""

import ast

import pytest

from trainer.demo.scenarios import MARKET


def says(content=None, *calls):
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": a, "arguments": b}} for n, (a, b) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


def test_it_does_not_know_arttrace():
    for path in (MARKET / "agent.py", MARKET / "world.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(name.startswith(("arttrace", "trainer")) for name in imported)


async def test_a_model_that_only_calls_tools_ends_with_no_answer(agent):
    agent.play(lambda messages, tools: says(None, (tools[0]["function"]["name"], '{"item": "fresh fig"}')))
    assert await agent.module.answer("fresh fig and canned bean") == "no answer"


@pytest.mark.parametrize("arguments", ["", "{", "[]", "3", '{"good": "fig"}', '{"item": null}', '{"item": ["x"]}'])
async def test_calls_that_make_no_sense_are_answered(agent, arguments):
    def script(messages, tools):
        results = [m["content"] for m in messages if m["role"] == "tool"]
        return says(f"shown {results[0]}") if results else says(None, ("no_such_tool", arguments))

    agent.play(script)
    assert await agent.module.answer("fresh fig and canned bean") == "shown unknown"


async def test_words_instead_of_a_call_are_the_answer(agent):
    agent.play(lambda messages, tools: says("fresh fig 3"))
    assert await agent.module.answer("fresh fig and canned bean") == "fresh fig 3"
    assert len(agent.calls) == 1
