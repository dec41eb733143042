"""A program written for 0.1: each module and name it may import is still there, or CHANGELOG says where it is now."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

MODULES_OF_0_1 = """
arttrace arttrace.capture arttrace.capture.annotations arttrace.capture.api arttrace.capture.bootstrap
arttrace.capture.bootstrap.sitecustomize arttrace.capture.call arttrace.capture.config arttrace.capture.content
arttrace.capture.decorators arttrace.capture.delivery arttrace.capture.entries arttrace.capture.flow
arttrace.capture.guard arttrace.capture.hooks arttrace.capture.hops arttrace.capture.http_clients
arttrace.capture.http_hook arttrace.capture.ids arttrace.capture.middleware arttrace.capture.no_input
arttrace.capture.openai_hook arttrace.capture.otlp arttrace.capture.otlp_client arttrace.capture.places
arttrace.capture.processes arttrace.capture.program arttrace.capture.propagation arttrace.capture.recorder
arttrace.capture.replay arttrace.capture.rollout_worker arttrace.capture.routing arttrace.capture.rows
arttrace.capture.runtime arttrace.capture.scope arttrace.capture.secrets arttrace.capture.shipper
arttrace.capture.span arttrace.capture.steps arttrace.capture.threads arttrace.capture.tool_hooks
arttrace.capture.tool_hooks.langchain arttrace.capture.tool_hooks.langgraph arttrace.capture.tool_hooks.mcp
arttrace.capture.tool_hooks.openai_agents arttrace.capture.tool_hooks.runs arttrace.capture.tool_hooks.smolagents
arttrace.capture.values arttrace.collector arttrace.collector.answers arttrace.collector.api arttrace.collector.app
arttrace.collector.asgi arttrace.collector.bodies arttrace.collector.forward arttrace.collector.front
arttrace.collector.grpc_server arttrace.collector.guard arttrace.collector.journal arttrace.collector.load
arttrace.collector.loader arttrace.collector.metrics arttrace.collector.otlp arttrace.collector.owner
arttrace.collector.server arttrace.collector.sink arttrace.collector.traces arttrace.commands
arttrace.commands.collect arttrace.commands.export arttrace.commands.import_ arttrace.commands.judge_check
arttrace.commands.judge_options arttrace.commands.ls arttrace.commands.options arttrace.commands.prune
arttrace.commands.run arttrace.commands.score arttrace.commands.ship arttrace.commands.show arttrace.commands.sql
arttrace.errors arttrace.formats arttrace.formats.conversations arttrace.formats.evaluations arttrace.formats.files
arttrace.formats.foreign arttrace.formats.langfuse arttrace.formats.messages arttrace.formats.otlp
arttrace.formats.otlp_check arttrace.formats.otlp_groups arttrace.formats.otlp_json arttrace.formats.otlp_protobuf
arttrace.formats.payload arttrace.groups arttrace.journal arttrace.journal.frames arttrace.journal.lock
arttrace.journal.reader arttrace.journal.writer arttrace.loop arttrace.loop.backend arttrace.loop.gather
arttrace.loop.model arttrace.paths arttrace.records arttrace.records.call arttrace.records.checked
arttrace.records.group arttrace.records.int64 arttrace.records.message arttrace.records.policy arttrace.records.record
arttrace.records.reward arttrace.records.rollout arttrace.records.sequence arttrace.records.span
arttrace.records.tokens arttrace.records.trajectory arttrace.records.typed arttrace.records.unreadable
arttrace.rewards arttrace.rewards.answer arttrace.rewards.check arttrace.rewards.failures arttrace.rewards.judge
arttrace.rewards.mix arttrace.rewards.prompt arttrace.rewards.transcript arttrace.semconv arttrace.store
arttrace.store.ahead arttrace.store.ahead_process arttrace.store.batches arttrace.store.database arttrace.store.file
arttrace.store.garbage arttrace.store.intake arttrace.store.interrupting arttrace.store.links arttrace.store.migrate
arttrace.store.named arttrace.store.opening arttrace.store.operations arttrace.store.parts arttrace.store.placing
arttrace.store.prefixes arttrace.store.prune arttrace.store.query arttrace.store.reading arttrace.store.remote
arttrace.store.rows arttrace.store.schema arttrace.store.shared arttrace.store.store arttrace.store.summary
arttrace.store.writer arttrace.trajectories arttrace.trajectories.build arttrace.trajectories.chains
arttrace.trajectories.decode arttrace.trajectories.graph arttrace.trajectories.history arttrace.trajectories.labels
arttrace.trajectories.reader arttrace.trajectories.rewarded arttrace.trajectories.sequences
arttrace.trajectories.shared arttrace.trajectories.spans arttrace.trajectories.subagents arttrace.trajectories.tools
arttrace.trajectories.tree arttrace.trajectories.values arttrace.views arttrace.views.terminal arttrace.wire
arttrace.wire.answer arttrace.wire.chat arttrace.wire.completions arttrace.wire.compression arttrace.wire.decode
arttrace.wire.embeddings arttrace.wire.exchange arttrace.wire.items arttrace.wire.messages
arttrace.wire.response_events arttrace.wire.responses arttrace.wire.rewriting arttrace.wire.span arttrace.wire.sse
trainer trainer.advantages trainer.batch trainer.checkpoints trainer.commands trainer.commands.daemon_options
trainer.commands.demo trainer.commands.grpo_steps trainer.commands.learner_options trainer.commands.policies
trainer.commands.rollout trainer.commands.serve trainer.commands.status trainer.commands.train
trainer.commands.training trainer.config trainer.daemon trainer.daemon.loop trainer.daemon.machine
trainer.daemon.patience trainer.daemon.prometheus trainer.daemon.publishing trainer.daemon.queue
trainer.daemon.scoring trainer.daemon.sharing trainer.daemon.state trainer.demo trainer.demo.base_model
trainer.demo.demonstrations trainer.demo.pipeline trainer.demo.recipe trainer.demo.report trainer.demo.scenarios
trainer.demo.screen trainer.demo.stand_in trainer.demo.stand_in_judge trainer.demo.state trainer.demo.teacher
trainer.demo.tokenizer trainer.export trainer.gateway trainer.gateway.app trainer.gateway.connections
trainer.gateway.errors trainer.gateway.gate trainer.gateway.generation trainer.gateway.http_server
trainer.gateway.identity trainer.gateway.policies trainer.gateway.pool trainer.gateway.publish
trainer.gateway.recording trainer.gateway.requests trainer.gateway.routes trainer.gateway.sleep
trainer.gateway.trajectories trainer.gateway.upstream trainer.learner trainer.learner.attention trainer.learner.base
trainer.learner.config trainer.learner.forest trainer.learner.head trainer.learner.interface trainer.learner.losses
trainer.learner.memory trainer.learner.packed trainer.learner.policy_model trainer.learner.quiet trainer.learner.ranks
trainer.learner.samples trainer.learner.state trainer.learner.trl trainer.learner.trl_trainer trainer.metrics
trainer.offline trainer.offline.conversations trainer.offline.plan trainer.offline.render trainer.offline.select
trainer.offline.step trainer.offline.torch_head trainer.offline.train trainer.replay trainer.replay_report
trainer.reporters trainer.retention trainer.rollouts trainer.selection trainer.serving trainer.serving.child
trainer.serving.client trainer.serving.engine trainer.serving.guard trainer.serving.model trainer.serving.process
trainer.serving.report trainer.serving.server trainer.serving.supervisor
"""

OFFERED_BY_0_1 = """
arttrace: ASGIMiddleware WSGIMiddleware agent current_trajectory flush init no_capture reward route run_entry shutdown
tool trajectory update
arttrace.journal: JournalFull JournalWriter Segment SegmentReader list_segments read_segment
arttrace.loop: LocalBackend TrainableModel TrainedStep TrajectoryGroup gather_trajectories gather_trajectory_groups
arttrace.rewards: DEFAULT_RUBRIC TrajectoryScore judgement_key rewards_from ruler ruler_score_group score_groups
to_store trajectory_reward
arttrace.store: AnyStore RemoteStore Store TrajectorySummary open_store
arttrace.trajectories: build_trajectories sequences
arttrace.wire: Api Decoded Ending Exchange api_of decode decode_chat operation_of
trainer.daemon: Clock Loop NothingToTrain Phase complete_step finish_open_step require_trainable
trainer.learner: LearnerConfig make_learner
trainer.rollouts: RolloutJob RolloutResult RolloutWorkers
trainer.serving: GatewayClient GatewayStatus PublishReport Serving ServingFile find_serving start_serving
"""
"""What a package named in its `__all__`."""


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


def test_what_packages_of_0_1_offered_is_there_or_named() -> None:
    gone = []
    for package, names in re.findall(r"^([a-z.]+): ((?:\w+\s+)+)", OFFERED_BY_0_1, re.MULTILINE):
        if not exists(package):
            continue  # named as a whole
        module = importlib.import_module(package)
        gone += [(package, name) for name in names.split() if not hasattr(module, name)]
    moved = CHANGELOG[CHANGELOG.index("- What packages of 0.1 offered") :].partition("\n- ")[0]
    assert [(package, name) for package, name in gone if f"`{package}`" not in moved or f"`{name}`" not in moved] == []
    for name, module in re.findall(r"`(\w+)` in `([a-z.]+)`", moved):
        assert hasattr(importlib.import_module(module), name)
