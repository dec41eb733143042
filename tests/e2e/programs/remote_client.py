"""A training program on a machine without torch, vLLM or the trainer: it has the server's URL, and its own runs."""

from __future__ import annotations

import asyncio
import sys

for name in ("torch", "vllm", "transformers", "peft", "trl", "trainer"):
    sys.modules[name] = None  # importing it raises ImportError

import arttrace  # noqa: E402
import arttrace.loop as art  # noqa: E402
from arttrace.system.errors import TrainingError  # noqa: E402


@arttrace.trajectory
async def rollout(model: art.TrainableModel, question: str, number: int) -> str:
    async with model.openai_client() as client:
        answer = await client.chat.completions.create(
            model=model.inference_name, messages=[{"role": "user", "content": question}], max_tokens=8, seed=number
        )
    arttrace.reward(float(number % 2))
    return str(answer.choices[0].message.content)


async def main(url: str, base_model: str) -> None:
    model = art.TrainableModel(name="agent-001", base_model=base_model)
    async with art.ServerBackend(url) as backend:
        await model.register(backend)
        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(rollout(model, question, number) for number in range(4)) for question in ("a", "b")
        )
        before = model.get_step()
        [done] = await model.train(groups, config=art.TrainConfig(learning_rate=1e-4))
        assert model.get_step() == before + 1
        try:
            await model.train(groups)
        except TrainingError as again:
            print(again)
        print(done.version, done.metrics["tokens_trained"] > 0)


asyncio.run(main(*sys.argv[1:]))
