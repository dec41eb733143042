"""A program written for 0.1: each module it may import is still there, or CHANGELOG says where its contents are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

MODULES_OF_0_1 = """
arttrace arttrace.capture arttrace.capture.api arttrace.capture.bootstrap arttrace.capture.bootstrap.sitecustomize
arttrace.capture.call arttrace.capture.config arttrace.capture.decorators arttrace.capture.flow
arttrace.capture.guard arttrace.capture.hooks arttrace.capture.http_hook arttrace.capture.ids
arttrace.capture.openai_hook arttrace.capture.program arttrace.capture.recorder arttrace.capture.rollout_worker
arttrace.capture.runtime arttrace.capture.scope arttrace.capture.steps arttrace.capture.threads
arttrace.capture.values arttrace.collector arttrace.collector.app arttrace.collector.otlp arttrace.collector.server
arttrace.collector.sink arttrace.commands arttrace.commands.collect arttrace.commands.ls arttrace.commands.options
arttrace.commands.run arttrace.commands.score arttrace.commands.show arttrace.commands.sql arttrace.errors
arttrace.groups arttrace.journal arttrace.journal.frames arttrace.journal.lock arttrace.journal.reader
arttrace.journal.writer arttrace.loop arttrace.loop.backend arttrace.loop.gather arttrace.loop.model arttrace.paths
arttrace.records arttrace.records.call arttrace.records.group arttrace.records.message arttrace.records.policy
arttrace.records.record arttrace.records.reward arttrace.records.rollout arttrace.records.sequence
arttrace.records.span arttrace.records.tokens arttrace.records.trajectory arttrace.rewards arttrace.rewards.answer
arttrace.rewards.failures arttrace.rewards.judge arttrace.rewards.mix arttrace.rewards.prompt
arttrace.rewards.transcript arttrace.semconv arttrace.store arttrace.store.database arttrace.store.intake
arttrace.store.rows arttrace.store.schema arttrace.store.store arttrace.store.summary arttrace.trajectories
arttrace.trajectories.build arttrace.trajectories.decode arttrace.trajectories.graph arttrace.trajectories.history
arttrace.trajectories.sequences arttrace.trajectories.spans arttrace.trajectories.subagents
arttrace.trajectories.tools arttrace.trajectories.tree arttrace.views arttrace.views.terminal arttrace.wire
arttrace.wire.answer arttrace.wire.chat arttrace.wire.compression arttrace.wire.exchange arttrace.wire.messages
arttrace.wire.sse trainer trainer.advantages trainer.batch trainer.checkpoints trainer.commands
trainer.commands.demo trainer.commands.serve trainer.commands.train trainer.daemon trainer.demo
trainer.demo.base_model trainer.demo.demonstrations trainer.demo.pipeline trainer.demo.recipe trainer.demo.report
trainer.demo.scenarios trainer.demo.screen trainer.demo.stand_in trainer.demo.stand_in_judge trainer.demo.state
trainer.demo.teacher trainer.demo.tokenizer trainer.gateway trainer.gateway.app trainer.gateway.errors
trainer.gateway.policies trainer.gateway.publish trainer.gateway.upstream trainer.learner trainer.learner.config
trainer.learner.interface trainer.learner.quiet trainer.learner.samples trainer.learner.trl
trainer.learner.trl_trainer trainer.rollouts trainer.serving trainer.serving.child trainer.serving.client
trainer.serving.engine trainer.serving.guard trainer.serving.model trainer.serving.process trainer.serving.report
trainer.serving.server
"""


def exists(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_every_module_of_0_1_is_there_or_named() -> None:
    gone = [module for module in MODULES_OF_0_1.split() if not exists(module)]
    assert [module for module in gone if not re.search(rf"[` ]{re.escape(module)}`", CHANGELOG)] == []


def test_where_they_are_said_to_be_they_are() -> None:
    moved = dict(re.findall(r"`([a-z_0-9.]+)`:\s+`((?:arttrace|trainer)\.[a-z_0-9.]+)`", CHANGELOG))
    assert len(moved) > 50
    assert {old: new for old, new in moved.items() if not exists(new)} == {}
