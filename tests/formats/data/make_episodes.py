"""Made verifiers_episodes.jsonl: what verifiers 0.4.0 writes (`verifiers.v1.utils.trace_store.write_episode`) of three
episodes of several agents, stamped as prime-rl's dispatcher does it. In each a proposer makes a task of that of the
group, two solvers attempt it, and a user is played that is not to be trained. The last one is an evaluation.

    pip install verifiers==0.4.0
    python tests/formats/data/make_episodes.py
"""

from pathlib import Path
from typing import Any

from verifiers.v1 import Episode, EvalWorkInfo, GroupInfo, PolicySpan, TrainRunInfo, TrainWorkInfo
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import EnvInfo
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import Task, WireTaskData
from verifiers.v1.trace import AgentInfo, ModelCall, Reward, TimeSpan, Timing, Trace, TraceTask, VersionInfo
from verifiers.v1.types import AssistantMessage, UserMessage
from verifiers.v1.utils.trace_store import write_episode

HERE = Path(__file__).parent
BEGAN = 1_772_359_200.0


def asked(prompt: str) -> TraceTask[Any]:
    data = WireTaskData(idx=0, prompt=prompt)
    task = Task[Any, Any, Any](data)
    return TraceTask(type="Task", data=data, key=task.key, hash=task.hash)


def trace(id: str, agent: str, task: TraceTask[Any], answer: str, at: float, **more: Any) -> Trace[Any, Any, Any]:
    """A question and an answer of one agent."""
    score, trainable = more.get("score"), more.get("trainable", True)
    nodes = [
        MessageNode(message=UserMessage(content=task.data.prompt), timestamp=at, token_ids=[1, 2], mask=[False] * 2),
        MessageNode(
            parent=0, message=AssistantMessage(content=answer), sampled=True, timestamp=at + 1, token_ids=[3, 4, 5],
            mask=[False, True, True], logprobs=[-0.5, -0.25],
        ),
    ]  # fmt: skip
    call = ModelCall(node=1, model="m", finish_reason="stop", time=TimeSpan(start=at, end=at + 1))
    return Trace(
        id=id, verifiers=VersionInfo(version="0.4.0"), task=task, nodes=nodes, calls=[call], is_completed=True, ok=True,
        agent=AgentInfo(config=WireAgentConfig(), name=agent, trainable=trainable), timing=Timing(start=at),
        rewards={} if score is None else {"correct": Reward(score=score)},
    )  # fmt: skip


def episode(number: int) -> Episode[Any, Any, Any]:
    task, made = asked("Make a sum."), asked(f"{number} + {number}?")
    policy, at = PolicySpan(start=2, end=3), BEGAN + 10 * number
    work = EvalWorkInfo(step=3, policy=policy) if number == 3 else TrainWorkInfo(step=3, policy=policy)
    traces = [
        trace(f"{number}-proposer", "proposer", task, f"{number} + {number}?", at, score=0.5 * number),
        *(trace(f"{number}-solver-{n}", "solver", made, str(2 * number + n), at + 2, score=1.0 - n) for n in (0, 1)),
        trace(f"{number}-user", "user", asked("Be a user."), "Hello.", at + 4, trainable=False),
    ]
    found = Episode(
        id=f"episode-{number}", env=EnvInfo(id="sums", name="sums"), task=task, ok=True, traces=traces,
        group=GroupInfo(id="evaluated" if number == 3 else "g1"),
    )  # fmt: skip
    found.record_run(TrainRunInfo(id="run-1", name="first", work=work))
    return found


if __name__ == "__main__":
    file = HERE / "verifiers_episodes.jsonl"
    (HERE / "traces.jsonl").unlink(missing_ok=True)
    for number in (1, 2, 3):
        write_episode(HERE, episode(number))
    (HERE / "traces.jsonl").rename(file)
