"""`arttrace train --orders`: a trainer that stays up and makes versions on request, for `arttrace.loop`.

One order per line on standard input, one answer per line on standard output, both JSON; the first line says that it is
ready. The learner stays in memory between orders, as the daemon's does. It exits when standard input ends, so also when
the process that sends the orders dies, after the running step. An order may be cancelled: what has not changed the
weights by then is not made.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from arttrace.commands.shared.progress import Progress, say
from arttrace.loop.processes.trainer_process import OrderedBatch, OrderedGroup
from arttrace.records.group import Group
from arttrace.records.policy import PolicyStep
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.records.values.users_text import error_line
from arttrace.store import AnyStore
from arttrace.store.server.owner import hold_store
from arttrace.system.errors import ArttraceError, TrainingError
from arttrace.system.paths import DataDir
from trainer.commands.train.line_pipes import LinesIn, answers
from trainer.commands.train.offline import OfflineTerms, offline_lines, plan_offline, plan_ordered
from trainer.commands.train.order_lines import (
    OrderCancelled,
    OrderProgress,
    OrderResult,
    TrainOrder,
    cancelled_by,
    require_one_thing,
)
from trainer.commands.train.report import after_versions, rollback_note
from trainer.commands.train.settings import TrainSettings, parse_settings, require_for_batches
from trainer.daemon.gateway import LONGEST_DRAIN_S, FoundGateway
from trainer.daemon.state import reported_steps
from trainer.grpo.shares import build, choose_groups, share_out
from trainer.grpo.trainer import NothingToTrain, PolicyTrainer
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import Learner
from trainer.learner.machine.fitting import FITTED
from trainer.offline.plan import require_examples
from trainer.offline.step import offline_learner, train_offline
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.refused_runs import refused_runs
from trainer.serving import find_serving
from trainer.serving.base_models import require_base_of_newest, require_served
from trainer.serving.precision import in_precision_of
from trainer.step.adapter_shape import in_shape_of
from trainer.step.left_out import Reasons, left_out_lines
from trainer.step.phases import Clock, Phase
from trainer.step.reported import Reporting
from trainer.step.signals import stop_on_signals
from trainer.step.version import finish_open_step

if TYPE_CHECKING:  # it imports what takes seconds
    from trainer.offline.train import OfflineLearner

_AT_EACH_STEP = frozenset(
    {
        *("learning_rate", "warmup_steps", "decay", "loss", "epsilon_low", "epsilon_high", "cispo_max_ratio"),
        *("dr_grpo_length", "delta", "importance_sampling_level", "importance", "importance_clip_min"),
        *("importance_clip_max", "kl_estimator", "use_bias_correction_kl", "max_kl", "epochs", "minibatches"),
        *("max_grad_norm", "max_logprob_difference"),
    }
)
"""Fields that the packed engine reads at each step: a new value needs no new learner."""


def take_orders(data: DataDir, policy: str, base_model: Path) -> None:
    """Take orders until standard input ends or a signal asks to stop.

    Until the first order it only imports packages, which takes seconds: it is started before it is needed, and locks
    neither the store nor the policy's versions until then.
    """
    stop = threading.Event()
    with ExitStack() as stack:
        answer = stack.enter_context(answers())
        stack.enter_context(stop_on_signals(stop, say))
        answer(OrderResult(0))
        # Only what unsloth, if a setting asks for it, need not come before.
        threading.Thread(target=importlib.import_module, args=("torch",), daemon=True).start()
        arriving = LinesIn(stop)
        lines = (line for line in arriving if not cancelled_by(line))
        first = next(lines, None)
        if first is None:
            return
        checkpoints = Checkpoints(data.policies, policy)
        stack.enter_context(checkpoints.only_writer())
        store = stack.enter_context(hold_store(data, create=True))

        def cancelled(id: int) -> bool:
            return any(cancelled_by(line) == id for line in arriving.arrived())

        trainer = OrderedTrainer(data, store, checkpoints, base_model, answer, cancelled)
        stack.callback(trainer.close)
        finish_open_step(store, checkpoints, trainer.gateway())
        for line in itertools.chain([first], lines):
            order = msgspec.json.decode(line, type=TrainOrder)
            try:
                answer(trainer.fill(order))
            except BrokenPipeError:
                return


_Step = tuple[PolicyStep | None, Reasons]
"""A version, or None if there was nothing to learn, and the runs that it was not trained on."""


class OrderedTrainer:
    """One policy's learner, kept between orders."""

    def __init__(
        self,
        data: DataDir,
        store: AnyStore,
        checkpoints: Checkpoints,
        base_model: Path,
        answer: Callable[[OrderProgress], None] = lambda progress: None,
        cancelled: Callable[[int], bool] = lambda order: False,
    ) -> None:
        self._answer = answer
        self._is_cancelled = cancelled
        self._order = 0
        self._data = data
        self._store = store
        self._checkpoints = checkpoints
        self._base_model = base_model
        self._learner: Learner | None = None
        self._offline: OfflineLearner | None = None  # only one of the two is there
        self._asked: LearnerConfig | None = None  # last of the learner; its own config is fitted to the machine
        self._holds: int | None = None  # the version that the learner holds
        self._reporting: dict[tuple[str, ...], Reporting] = {}
        self._reported = reported_steps(checkpoints, store)
        self._consumed: dict[str, set[str]] = {}  # by method; nobody else makes versions meanwhile

    def gateway(self) -> FoundGateway:
        """The gateway that runs for the policy. Raises TrainingError when it serves another one now."""
        require_served(find_serving(self._data), self._checkpoints.policy, self._base_model)
        return FoundGateway(self._data, self._checkpoints.policy, self._base_model, first_drain_s=LONGEST_DRAIN_S)

    def prepare(self, config: LearnerConfig) -> Learner:
        """The learner at the newest version, with this config; made anew only if the config requires it."""
        config = in_precision_of(config, find_serving(self._data))
        newest = self._checkpoints.latest() or 0
        is_unknown = self._holds is None and not newest  # there is nothing to load
        if self._learner is None or self._asked is None or is_unknown or not _fits(self._asked, config):
            self._begin_loading()
            self._learner = make_learner(self._base_model, config)
            self._learner.progress = lambda total: self._watched(total, "tokens of the step")
            self._holds = 0
        learner = self._learner
        found = {name: getattr(learner.config, name) for name in FITTED if getattr(config, name) is None}
        learner.config = dataclasses.replace(config, **found)
        self._asked = config
        if self._holds != newest:
            if note := learner.load(self._checkpoints.path(newest)):
                self._say(note)
            self._holds = newest
        return learner

    def _prepare_offline(self, config: LearnerConfig) -> OfflineLearner:
        """The learner of the order before, if that was of the same config and made a version to go on from."""
        if self._offline is None or self._asked != config or not self._checkpoints.latest():
            self._begin_loading()
            self._offline, self._asked = offline_learner(self._base_model, config), config
        return self._offline

    def _begin_loading(self) -> None:
        """Free the model that is there, in cycles too: two at once may not fit into memory."""
        self._learner = self._offline = None
        gc.collect()
        self._say(f"loading {self._base_model}")

    def fill(self, order: TrainOrder) -> OrderResult:
        """Carry out an order; errors are part of the answer."""
        made: list[dict[str, Any]] = []
        skipped = 0
        self._order = order.id
        try:
            settings = self._settings(order)
            require_one_thing(order)
            if order.log is not None:
                self._reporting_of(settings).log(order.log.numbers, order.log.step)
                return OrderResult(order.id)
            for done, left_out in self._train(settings, order):
                if done is None:
                    skipped += 1
                    continue
                self._consumed.get(settings.method, set()).update(one.trajectory_id for one in done.consumed)
                step = {"version": done.version, "adapter": done.adapter, "metrics": done.metrics}
                made.append({**step, "left_out": left_out})
                self._reporting_of(settings).catch_up()
        except ArttraceError as error:
            self._read_anew()
            return OrderResult(order.id, made, skipped, after_versions(made, error.message), error.hint)
        except Exception as error:  # noqa: BLE001 - returned to whoever ordered, and the next order may go well
            self._read_anew()
            return OrderResult(order.id, made, skipped, after_versions(made, error_line(error)))
        return OrderResult(order.id, made, skipped)

    def _settings(self, order: TrainOrder) -> TrainSettings:
        settings = parse_settings(order.settings)
        return msgspec.structs.replace(settings, learner=in_shape_of(settings.learner, self._checkpoints))

    def _read_anew(self) -> None:
        """Let the next order begin from the disk: a step that failed may have made a version and consumed its runs."""
        self._holds = self._offline = None
        self._consumed.clear()

    def close(self) -> None:
        """Have the reporters write what they have buffered."""
        for reporting in self._reporting.values():
            reporting.close()

    def _train(self, settings: TrainSettings, order: TrainOrder) -> Iterator[_Step]:
        groups = order.groups
        if order.batches is not None:
            require_for_batches(settings)
        gateway = self.gateway()
        require_base_of_newest(self._checkpoints, self._base_model)
        self._store.ingest_spool()
        if self._holds is None:
            finish_open_step(self._store, self._checkpoints, gateway)
            self._reporting_of(settings).catch_up()
        self._reporting_of(settings).begin()
        if note := rollback_note(self._checkpoints):
            self._say(note)
        if settings.method != "grpo":
            yield self._train_offline(settings, groups, order.batches, gateway)
            return
        if groups is not None and settings.steps > 1:
            raise TrainingError(
                "The groups that are passed make one step.", "Leave steps out, or order the steps one by one."
            )
        if groups is not None:
            yield self._step(settings, self._exactly(groups, "grpo"), gateway, self._refused(settings))
            return
        refused = self._refused(settings)
        choice = choose_groups(self._store, self._checkpoints, settings.max_staleness, refused)
        shares, fewer = share_out(choice.groups, settings.steps, settings.max_staleness)
        if not shares:
            raise NothingToTrain("There is nothing to train on.", _reasons(choice.left_out))
        if fewer:
            self._say(fewer)
        self._tell(left_out_lines(choice.left_out))
        for number, share in enumerate(shares, 1):
            done, left_out = self._step(settings, build(self._store, share), gateway)
            if len(shares) > 1:
                made = f"{done.version} is made" if done else "nothing was learned"
                self._say(f"{made}, {number} of {len(shares)} steps")
            yield done, left_out

    def _refused(self, settings: TrainSettings) -> frozenset[str]:
        bound = in_precision_of(settings.learner, find_serving(self._data)).logprob_bound
        return refused_runs(self._checkpoints.directory, bound, self._say)

    def _step(
        self, settings: TrainSettings, groups: list[Group], gateway: FoundGateway, refused: Collection[str] = ()
    ) -> _Step:
        self._require_wanted()
        learner = self.prepare(settings.learner)
        loop = PolicyTrainer(
            policy=self._checkpoints.policy,
            base_model=str(self._base_model),
            store=self._store,
            learner=learner,
            checkpoints=self._checkpoints,
            gateway=gateway,
            scale=settings.advantages,
            std_floor=settings.std_floor,
            keep_states=settings.keep_states,
            max_staleness=settings.max_staleness,
            say=self._say,
        )
        clock = Clock()
        clock(Phase.BATCH)
        batch = loop.batch(groups, refused)
        self._tell(left_out_lines(batch.left_out, calls=batch.quarantined))
        done = loop.train_on(batch, clock)
        self._holds = done.step if done else self._holds
        return done, batch.left_out

    def _train_offline(
        self,
        settings: TrainSettings,
        groups: tuple[OrderedGroup, ...] | None,
        batches: tuple[OrderedBatch, ...] | None,
        gateway: FoundGateway,
    ) -> _Step:
        self._require_wanted()
        terms = OfflineTerms.of(settings)
        if batches is not None:
            found = self._found({id for batch in batches for id in batch.ids})
            runs = [([found[id] for id in batch.ids], batch.learning_rate) for batch in batches]
            plan = plan_ordered(self._base_model, terms, runs, self._say)
        else:
            exactly = None if groups is None else self._exactly(groups, terms.method, again=terms.again)
            plan = plan_offline(self._store, self._checkpoints, self._base_model, terms, exactly, say=self._say)
            require_examples(plan)
        self._tell(offline_lines(plan))
        config = in_precision_of(settings.learner, find_serving(self._data))
        learner = self._prepare_offline(config)
        done = train_offline(
            self._store,
            self._checkpoints,
            gateway,
            self._base_model,
            plan,
            config,
            progress=lambda total: self._watched(total, "optimizer steps"),
            keep_states=settings.keep_states,
            learner=learner,
            say=self._say,
        )
        return done, plan.trajectories_left_out if batches is None else plan.left_out

    def _exactly(self, groups: tuple[OrderedGroup, ...], method: str, *, again: bool = False) -> list[Group]:
        """Exactly these runs, grouped as ordered. Raises TrainingError if one is missing or was trained on."""
        named = Counter(id for group in groups for id in group.ids)
        ids = set(named)
        if twice := sum(number > 1 for number in named.values()):
            raise TrainingError(
                f"{twice} of the {quantity(len(ids), 'run')} {'is' if twice == 1 else 'are'} in the step twice.",
                "Pass each group once, and each run in one group.",
            )
        if method not in self._consumed:
            self._consumed[method] = set(self._checkpoints.consumed_ids(method))
        if not again and (used := ids & self._consumed[method]):
            raise TrainingError(
                f"{len(used)} of {quantity(len(ids), 'run')} were trained on by {method} already.",
                "Gather new runs for a step.",
            )
        found = self._found(ids)
        return [Group(group.key, tuple(found[id] for id in group.ids)) for group in groups]

    def _found(self, ids: set[str]) -> dict[str, Trajectory]:
        """These runs by their ids. Raises TrainingError if one is missing."""
        found = {one.id: one for one in self._store.trajectories(ids=sorted(ids))}
        if missing := sorted(ids - found.keys()):
            raise TrainingError(
                f"{len(missing)} of {quantity(len(ids), 'run')} not in the store, {missing[0]} for one.",
                "Runs that were pruned are gone: call train_sft again, which stores what its trajectories say, or "
                "gather new runs for a step.",
            )
        return found

    def _reporting_of(self, settings: TrainSettings) -> Reporting:
        reporting = self._reporting.get(settings.report_to)
        if reporting is None:
            config = {"method": settings.method, **msgspec.to_builtins(settings.learner)}
            reporting = Reporting(settings.report_to, self._reported, self._checkpoints, config, self._say)
            self._reporting[settings.report_to] = reporting
        return reporting

    def _watched(self, total: int, unit: str) -> Callable[..., None]:
        """Progress that gives the step up where its order was cancelled meanwhile."""
        progress = Progress(total, unit, self._say, tells_short=False)

        def tell(done: int, note: str = "") -> None:
            progress(done, note)
            self._require_wanted()

        return tell

    def _require_wanted(self) -> None:
        if self._is_cancelled(self._order):
            raise OrderCancelled("The step was cancelled; its runs are as they were.")

    def _tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._say(line)

    def _say(self, line: str) -> None:
        self._answer(OrderProgress(self._order, line))


def _fits(loaded: LearnerConfig, wanted: LearnerConfig) -> bool:
    """Whether a learner made with one config can take the other in its place."""
    changed = {name for name in loaded.__dataclass_fields__ if getattr(loaded, name) != getattr(wanted, name)}
    return not changed or (wanted.engine == "packed" and changed <= _AT_EACH_STEP)


def _reasons(left_out: Mapping[NotTrained, int]) -> str:
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
    return f"Trajectories left out: {counts}." if left_out else "Gather and reward runs first."
