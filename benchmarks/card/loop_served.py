"""Section d as a user runs it: `arttrace serve` with vLLM, recorded runs, the store, published versions.

Each run is one request to a base URL of its own and ends with its reward, as an agent in any language does it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.card.agreement import Agreement
from benchmarks.card.arithmetic import Task
from benchmarks.card.frame import Config, Table
from benchmarks.card.loop import Pair, Plan, Took, in_threads, learner_config, rise

POLICY = "policy"
_AT_ONCE = 64
_MOST_REFUSED = 3
_STALE = 20
"""Steps whose runs are shown to the learner of the next version as if that had sampled them."""


def with_vllm(config: Config, table: Table, base: Path, task: Task, plan: Plan, dtype: str | None = None) -> None:
    """A row of the table: the same plan over HTTP, in the machine's usual precision or in `dtype`."""
    import httpx

    from arttrace.store.server.owner import hold_store
    from arttrace.system.errors import TrainingError
    from arttrace.system.paths import DataDir
    from arttrace.trajectories.groups import group_trajectories
    from trainer.grpo.trainer import PolicyTrainer
    from trainer.learner import make_learner
    from trainer.policies.checkpoints import Checkpoints
    from trainer.serving import start_serving
    from trainer.step.phases import Clock, Phase

    data = DataDir(config.scratch / f"served {dtype}")
    options = ["--max-model-len=128", f"--vllm-arg=--max-num-seqs={_AT_ONCE}", "--vllm-arg=--max-lora-rank=16"]
    options += [] if config.toy else ["--engine-memory-share=0.2"]
    options += [f"--vllm-arg=--dtype={dtype}"] if dtype else []
    pairs, drawn, took = task.scenarios(held_out=False), random.Random(1), Took()
    asked = (task.scenarios(held_out=True) * (plan.asked // 20 + 1))[: plan.asked]
    learner = make_learner(base, learner_config(config, plan, dtype))
    checkpoints = Checkpoints(data.policies, POLICY)
    with (
        start_serving(data, base, options=options, timeout_s=config.left_s) as serving,
        hold_store(data, create=True) as store,
        checkpoints.only_writer(),
        httpx.Client(base_url=serving.url, timeout=300) as http,
    ):
        loop = PolicyTrainer(
            policy=POLICY,
            base_model=str(base),
            store=store,
            learner=learner,
            checkpoints=checkpoints,
            gateway=serving.client(),
        )
        loop.resume()

        def ask(url: str, pair: Pair) -> float:
            messages = [{"role": "user", "content": task.question(pair)}]
            body = {"model": f"{POLICY}:latest", "messages": messages, "max_tokens": task.longest}
            answer = http.post(f"{url}/v1/chat/completions", json=body).raise_for_status().json()
            return task.reward(pair, answer["choices"][0]["message"]["content"] or "")

        def record(one: tuple[str, str, Pair]) -> float:
            name, group, pair = one
            reward = ask(f"/r/{name}", pair)
            http.post(f"/r/{name}/end", json={"reward": reward, "group": group}).raise_for_status()
            return reward

        def right() -> float:
            return sum(in_threads(_AT_ONCE, lambda pair: ask("", pair), asked)) / len(asked)

        def groups(ids: Sequence[str]) -> list[Any]:
            """Of the runs that just ended, whose last spans may still be on their way to disk."""
            until = time.monotonic() + 30
            while True:
                store.ingest_spool()
                found = store.trajectories(ids=list(ids), complete_only=True)
                if len(found) == len(ids) or time.monotonic() > until:
                    return group_trajectories(found)
                time.sleep(0.05)

        before = right()
        took = Took()
        publish, refused, seen = 0.0, 0, Agreement(learner)
        means: list[float] = []
        for number in range(plan.steps):
            chosen = [(f"g{number}-{at}", pair) for at, pair in enumerate(drawn.sample(pairs, plan.groups))]
            runs = [(f"{group}-{one}", group, pair) for group, pair in chosen for one in range(plan.size)]
            rewards = took("rollout", lambda runs=runs: in_threads(_AT_ONCE, record, runs))
            means.append(sum(rewards) / len(rewards))
            found = took("store", lambda runs=runs: groups([name for name, _, _ in runs]))
            batch, clock = loop.batch(found), Clock()
            seen.compare(batch.samples, f"{POLICY}@{batch.step}")
            try:
                done = took("whole", lambda batch=batch, clock=clock: loop.train_on(batch, clock))
            except TrainingError as error:
                refused += 1
                table.note(f"step {number + 1} was refused: {error.message}")
                if refused == _MOST_REFUSED:
                    break
                continue
            if done is not None:
                took.phases["step"] = took.phases.get("step", 0.0) + done.metrics.get(f"{Phase.STEP}_s", 0.0)
                publish += done.metrics.get(f"{Phase.PUBLISH}_s", 0.0)
                if batch.step and seen.tried < _STALE:
                    seen.look_at_stale(as_if_of(batch.samples, version := f"{POLICY}@{batch.step + 1}"), version)
            if config.left_s < 60:
                table.note(f"stopped after {number + 1} steps for want of time")
                break
        took.phases["publish"] = publish
        cells = took.cells()
        shares = (rise(means), f"{before:.1%}", f"{right():.1%}")
        table.add(f"vLLM, {dtype}" if dtype else "vLLM, recorded runs", *shares, checkpoints.latest() or 0, *cells)
        mean, high, most, fresh, stale, caught = seen.cells()
        table.note(f"vLLM against the learner, in nats: mean {mean}, p99.9 {high}, max {most}; stale caught: {caught}")
        table.note(f"of the way to the version before have gone: fresh {fresh}, stale {stale}")


def as_if_of(samples: Sequence[Any], version: str) -> list[Any]:
    """The samples as another version's."""
    from msgspec import structs

    return [
        replace(sample, sequences=tuple(structs.replace(one, policy_versions=(version,)) for one in sample.sequences))
        for sample in samples
    ]
