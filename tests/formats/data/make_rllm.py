"""Made rllm_episodes.jsonl: episodes of one task as rLLM's own code writes them (0.3.0.pre at 9beb6e0f), two by
`EvalEpisodeStore`, which keeps token ids, and one by `EpisodeLogger`. In each a solver calls a tool, a judge answers.

    git clone https://github.com/rllm-org/rllm && git -C rllm checkout 9beb6e0f && pip install pydantic numpy
    PYTHONPATH=rllm python tests/formats/data/make_rllm.py
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from rllm.engine.rollout.rollout_engine import ModelOutput
from rllm.eval.episode_store import EvalEpisodeStore
from rllm.types import Episode, Step, Task, Trajectory
from rllm.utils.episode_logger import EpisodeLogger
from rllm.workflows.workflow import TerminationReason

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 x 7?"}]
CALLED = {
    "role": "assistant", "content": "", "reasoning": "I look.",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "times", "arguments": '{"a": 6, "b": 7}'}}],
}  # fmt: skip
LOOKED = {"role": "tool", "tool_call_id": "c1", "content": "42"}


def step(
    messages: list[Any], answer: dict[str, Any], ids: tuple[list[int], list[int]], reason: str, **more: Any
) -> Step:
    """As `trace_record_to_step` makes one of a call that rLLM's gateway saw."""
    output = ModelOutput(
        content=answer["content"], prompt_ids=ids[0], completion_ids=ids[1], logprobs=[-id / 8 for id in ids[1]],
        prompt_length=len(ids[0]), completion_length=len(ids[1]), finish_reason=reason, weight_version=3,
    )  # fmt: skip
    return Step(chat_completions=[*messages, answer], model_output=output, model_response=answer["content"], **more)


def episode(number: int, said: str, reward: float) -> Episode:
    answer = {"role": "assistant", "content": said}
    told = [*ASKED, CALLED, LOOKED]
    solved = [
        step(ASKED, CALLED, ([1, 2, 3], [4, 5]), "tool_calls", id=f"{number}-1", action="times"),
        step(told, answer, ([1, 2, 3, 4, 5, 6], [7]), "stop", id=f"{number}-2", reward=reward, done=True),
    ]
    verdict = step([ASKED[1]], {"role": "assistant", "content": "Fine."}, ([2, 8], [9]), "length", id=f"{number}-3")
    task: Any = Task(id="task-1", instruction="6 x 7?", metadata={"answer": "42"}, dataset_dir=Path("sums"))
    return Episode(
        id=f"task-1:{number}", task=task, termination_reason=TerminationReason.ENV_DONE, is_correct=reward == 1.0,
        session_id=f"s-{number}", metrics={"steps": 3}, metadata={"timing": {"total": 1.5}},
        trajectories=[
            Trajectory(uid=f"{number}-solver", name="solver", steps=solved, reward=reward, signals={"exact": reward}),
            Trajectory(uid=f"{number}-judge", name="judge", steps=[verdict], output="Fine."),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for number, said, reward in ((0, "42", 1.0), (1, "41", 0.0)):
            EvalEpisodeStore(folder).write(number, episode(number, said, reward))
        EpisodeLogger(folder, "logged").log_episode(episode(2, "42.", 0.5), step=5)
        files = sorted(Path(folder).rglob("*.json"))
        lines = [json.dumps(json.loads(file.read_text())) for file in files]
    (Path(__file__).parent / "rllm_episodes.jsonl").write_text("\n".join(lines) + "\n")
