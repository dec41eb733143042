"""A FastAPI service whose answers become training data: one decorator, users' feedback as rewards, no address of
anybody in what is kept, and Langfuse where its keys are set."""

import os

from fastapi import FastAPI
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from redaction import redacted

import arttrace

arttrace.init(mask=redacted, langfuse=bool(os.environ.get("LANGFUSE_SECRET_KEY")))

app = FastAPI()
client = AsyncOpenAI()


class Question(BaseModel):
    text: str
    user: str


class Feedback(BaseModel):
    run: str = Field(pattern="[0-9a-f]{32}")
    stars: int = Field(ge=1, le=5)


@arttrace.trajectory(tags=["production"], group=lambda question, user: question)
async def support(question: str, user: str) -> tuple[str, str]:
    run = arttrace.current_trajectory()
    arttrace.update(metadata={"user": user})
    reply = await client.chat.completions.create(
        model=os.environ.get("MODEL", "policy:latest"), messages=[{"role": "user", "content": question}]
    )
    return reply.choices[0].message.content or "", run.id if run else ""


@app.post("/answers")
async def answer(question: Question) -> dict[str, str]:
    text, run = await support(question.text, question.user)
    return {"answer": text, "run": run}


@app.post("/feedback")
async def feedback(given: Feedback) -> None:
    arttrace.reward((given.stars - 1) / 4, name="stars", trajectory_id=given.run)
