"""Agno: runs that wait for a person's yes to a tool and are then continued, of an agent and of a team, in each way."""

import asyncio
from typing import Any

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAIChat
from agno.team import Team
from agno.tools import tool


@tool(requires_confirmation=True)
def erase(number: int) -> str:
    """Erase a number."""
    return f"{number} erased"


def eraser() -> Agent:
    return Agent(
        name="eraser",
        id="eraser",
        model=OpenAIChat(id="gpt-4o"),
        instructions="You erase.",
        tools=[erase],
        db=InMemoryDb(),
    )


def yes(run: Any) -> dict[str, Any]:
    for requirement in run.active_requirements:
        requirement.confirm()
    return {"run_id": run.run_id, "session_id": run.session_id, "requirements": run.requirements}


async def in_tasks(agent: Any) -> list[str]:
    async def streamed(run: Any) -> str:
        events = [event async for event in agent.acontinue_run(**yes(run), stream=True)]
        return str(events[-1].content).strip()

    done = await agent.acontinue_run(**yes(await agent.arun("Erase 21")))
    return [str(done.content), await streamed(await agent.arun("Erase 21"))]


def main() -> list[str]:
    agent = eraser()
    done = agent.continue_run(**yes(agent.run("Erase 21")))
    events = list(agent.continue_run(**yes(agent.run("Erase 21")), stream=True))
    team = Team(
        name="desk",
        members=[eraser()],
        model=OpenAIChat(id="gpt-4o"),
        instructions="You dispatch.",
        db=InMemoryDb(),
    )
    by_team = team.continue_run(**yes(team.run("Erase 21")))
    texts = [str(done.content), str(events[-1].content).strip(), str(by_team.content)]
    return [*texts, *asyncio.run(in_tasks(eraser()))]


if __name__ == "__main__":
    print(main())
