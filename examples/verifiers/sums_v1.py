"""A small environment for verifiers: sums, answered with as few words as may be."""

import random

import verifiers.v1 as vf


class SumData(vf.TaskData):
    """One sum, and what it comes to."""

    answer: str


class SumTask(vf.Task[SumData]):
    """The right number counts most."""

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        """Whether the last word is the right number."""
        return float(trace.last_reply.split()[-1:] == [self.data.answer])

    @vf.reward(weight=0.1)
    async def brief(self, trace: vf.Trace) -> float:
        """1 for one word, less for each more."""
        return 1 / max(1, len(trace.last_reply.split()))


class SumsConfig(vf.TasksetConfig):
    """How many sums there are."""

    num_tasks: int = 8


class Sums(vf.Taskset[SumTask, SumsConfig]):
    """Sums of two numbers, the same ones each time."""

    def load(self) -> list[SumTask]:
        """The tasks."""
        draws = random.Random(1)
        pairs = [(draws.randrange(100), draws.randrange(100)) for _ in range(self.config.num_tasks)]
        return [
            SumTask(SumData(idx=number, prompt=f"What is {a} + {b}?", answer=str(a + b)), self.config.task)
            for number, (a, b) in enumerate(pairs)
        ]


__all__ = ["Sums"]
