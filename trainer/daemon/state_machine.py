"""Daemon: the state machine that trains one policy until it is stopped.

wait -> score -> batch -> step -> checkpoint -> publish -> record -> wait. Every state is on disk before its work
begins, and its work may be done again:

- wait chooses the groups of the next version, and the choice is kept until that version is there or the judge fails;
- score stores each judgement as it comes, and asks for none twice;
- batch and step change only memory: the next start does them again from the last checkpoint, which holds weights,
  optimizer and random state, so that the same version comes of it;
- checkpoint is one rename; what was consumed is in its manifest;
- publish and record do nothing when they were done.

A failure that may pass (a gateway that restarts, a judge that is down, a full disk) is waited for; groups for which the
judge fails alone wait by themselves. A step whose numbers are not finite, or whose rewards are all equal, is skipped; a
scenario whose rewards are all equal is skipped for a while, longer each time. Want of signal never ends the daemon;
numbers that are never finite do, and everything else. The last version goes on being served.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from arttrace.records.group import Group
from arttrace.records.policy import Consumed, PolicyStep, version_rewards
from arttrace.records.record import Record
from arttrace.records.reward import Judgement
from arttrace.records.values.units import duration_text, quantity
from arttrace.records.values.users_text import error_line
from arttrace.rewards.langfuse_scores import LangfuseScores
from arttrace.store import AnyStore
from arttrace.store.access.late_spans import late
from arttrace.system.errors import ArttraceError, JudgeError, TrainingError
from arttrace.trajectories.groups import group_trajectories
from trainer.daemon.config import DaemonConfig
from trainer.daemon.idle import Mark, idle_shares
from trainer.daemon.pauses import bounded, paused
from trainer.daemon.queue import ReadyTerms, look
from trainer.daemon.scoring import JudgeTerms, judge
from trainer.daemon.state import (
    FAILED,
    ROUND_SKIPPED,
    STARTING,
    STOPPED,
    DaemonState,
    Pause,
    StepPlan,
    kept_or_begun,
    note_look,
    reported_steps,
    started,
    write_state,
)
from trainer.daemon.unscored import UnscoredGroups
from trainer.grpo.metrics import group_rewards
from trainer.grpo.trainer import NothingToTrain, PolicyTrainer
from trainer.learner.interface import Learner, NotComputed, OtherWeights
from trainer.output.log import Problem, same_level
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.made_here import made_here
from trainer.policies.refused_runs import refused_runs
from trainer.policies.retention import to_prune
from trainer.serving import GatewayStatus
from trainer.step.left_out import lasting_lines, left_out_lines
from trainer.step.phases import Clock, Phase
from trainer.step.reporters import Reporters
from trainer.step.retry import RetryUntilStopped, StopRequested
from trainer.step.version import PublishingGateway

_SHOWN_GROUPS = 20
_KEPT_ASIDE = 10_000
"""How many of the runs that were set aside the state file has: it is written whole at every change."""
_RESTS, _LONGEST_REST_S = 4, 60.0
"""How many times as long as a look at the store took it waits for the next one, since many runs take long, and the
seconds that this is at most: a look may have waited for the store."""
_EQUAL = "all rewards within each group are equal"


class Daemon:
    """One policy's daemon. `state` is what it does now, for any thread to read; `stop` asks it to end."""

    def __init__(
        self,
        config: DaemonConfig,
        *,
        policy: str,
        base_model: Path,
        store: AnyStore,
        learner: Callable[[], Learner],
        gateway: PublishingGateway | None = None,
        judge: JudgeTerms | None = None,
        reporters: Reporters | None = None,
        stop: threading.Event | None = None,
        say: Callable[[str], None] = lambda line: None,
        on_step: Callable[[PolicyStep], None] = lambda done: None,
        metrics_url: str = "",
    ) -> None:
        self._config = config
        self._policy = policy
        self._base_model = base_model
        self._store = store
        self._live_scores = LangfuseScores(store.data)
        self._make_learner = learner
        self._gateway = gateway
        self._judge = judge
        self._reporters = reporters or Reporters.none()
        self._stop = stop or threading.Event()
        self._say = say
        self._on_step = on_step
        self._metrics_url = metrics_url
        self._checkpoints = Checkpoints(store.data.policies, policy)
        self._retry = RetryUntilStopped(self._stop, self._trouble)
        self._unjudged: set[str] = set()  # ids of runs that the judge cannot score; asked again by the next start
        self._unscored = UnscoredGroups(self._stop, self._trouble, lambda line: self._say(Problem(line)))
        self._ready_since: float | None = None
        self._aside: tuple[Consumed, ...] = ()
        self._not_computed = 0  # rounds in a row
        self._consumed: frozenset[str] = frozenset()  # when it started: what a fork inherited is in no other place
        self._refused: frozenset[str] = frozenset()
        self._rewarded: list[PolicyStep] = []  # every step, without what it consumed
        self._told: set[str] = set()
        self._state_lost = False
        self.state = DaemonState(policy=policy)

    def run(self) -> None:
        """Train until `stop`, or until the policy is at `max_steps`. To be called by the policy's only writer.

        Raises what ended it: an ArttraceError when something does not pass, KeyboardInterrupt when the running step
        was dropped.
        """
        try:
            known = kept_or_begun(self._checkpoints.directory, self._policy, lambda line: self._say(Problem(line)))
            self._train(known)
        finally:
            self._live_scores.close()
            self._reporters.close()

    def _train(self, known: DaemonState) -> None:
        try:
            self._begin(known)
            while not self._done():
                self._round(self.state.plan or self._choose())
            self._enter(STOPPED, reason=f"{self._policy}@{self.state.step} is there, as was asked for")
        except StopRequested:
            self._enter(STOPPED, reason="asked to stop")
        except KeyboardInterrupt:
            self._enter(STOPPED, reason="asked to stop at once: the step under way was dropped")
            raise
        except ArttraceError as error:
            self._enter(FAILED, reason=error.message, hint=error.hint or "")
            raise
        except BaseException as error:
            self._enter(FAILED, reason=error_line(error))
            raise

    @property
    def makes_a_version(self) -> bool:
        """Whether a stop waits: for the version in the making, or for the last one, which a start finishes first."""
        return self.state.state not in (Phase.WAIT, STOPPED, FAILED)

    # --- the states ------------------------------------------------------------------------------------------

    def _begin(self, known: DaemonState) -> None:
        """Take up what the last start left: finish an open step, keep a plan whose version is not there yet."""
        step = self._checkpoints.latest() or 0
        self.state = started(
            known,
            step,
            base_model=str(self._base_model),
            metrics=self._metrics_url,
            min_groups=self._config.min_groups,
            max_staleness=self._config.max_staleness,
        )
        self._enter(STARTING)
        self._loop = PolicyTrainer(
            policy=self._policy,
            base_model=str(self._base_model),
            store=self._store,
            learner=self._make_learner(),
            checkpoints=self._checkpoints,
            gateway=self._gateway,
            scale=self._config.advantages,
            std_floor=self._config.std_floor,
            keep_states=self._config.keep.states,
            max_staleness=self._config.max_staleness,
            retry=self._retry,
            say=self._say,
        )
        self._loop.resume()
        consumed = self._checkpoints.consumed_ids("grpo")
        bound = self._loop.learner.config.logprob_bound
        self._refused = refused_runs(self._checkpoints.directory, bound, lambda line: self._say(Problem(line)))
        self._consumed = consumed
        self._mark = Mark.now(self._gateway_status())
        self._aside = tuple(one for one in self.state.set_aside if one.trajectory_id not in consumed)
        self._note(**self._noted_aside())
        made = [self._checkpoints.manifest(n) for n in self._checkpoints.all_steps()]
        self._rewarded = [msgspec.structs.replace(done, consumed=()) for done in made]
        self._reported = reported_steps(self._checkpoints, self._store)
        self._note(reported=self._reported.tell(self._reporters))

    def _choose(self) -> StepPlan:
        """Wait until enough groups are ready, and choose those that are ready for longest."""
        self._enter(Phase.WAIT)
        config, step = self._config, self.state.step
        made, alone = made_here(self._checkpoints), self._judge is None
        fixed = ReadyTerms(self._policy, step, config.group_size, alone, config.max_staleness, self._refused, made)
        late_runs = self._retry(lambda: len(late(self._store, self._store.summaries(), self._policy)))
        while not self._stop.is_set():
            began = time.monotonic()
            self._retry(self._store.ingest_spool)
            summaries = self._retry(lambda: self._store.summaries(unconsumed_by=self._policy, method="grpo"))
            taken = self._unjudged | self._consumed | {one.trajectory_id for one in self._aside}
            pauses, unscored = self._pauses(), self._unscored.waiting()
            terms = dataclasses.replace(
                fixed,
                paused=frozenset(one.key for one in pauses),
                unscored=frozenset(one.key for one in unscored),
            )
            ready, queue = look(summaries, terms, taken)
            queue = msgspec.structs.replace(queue, late=late_runs)
            since = self._ready_since = (self._ready_since or time.monotonic()) if ready else None
            enough = len(ready) >= config.min_groups
            if queue != self.state.queue or unscored != self.state.unscored:
                self._note(queue=queue, unscored=unscored)
            for line in lasting_lines(queue.left_out, self._told):
                self._say(Problem(line))
            note_look(self._checkpoints.directory)
            if enough or (since is not None and time.monotonic() - since >= config.max_wait):
                plan = StepPlan(step + 1, tuple(self._unscored.in_turn(ready)[: config.min_groups]))
                self._note(plan=plan, queue=msgspec.structs.replace(queue, ready=len(ready) - len(plan.groups)))
                return plan
            took = time.monotonic() - began
            self._stop.wait(max(config.poll, min(_RESTS * took, _LONGEST_REST_S)))
        raise StopRequested

    def _round(self, plan: StepPlan) -> None:
        """Make the plan's version, or put its runs aside with the reason."""
        clock = Clock(watch=lambda phase: self._enter(phase))
        groups = self._groups(plan)
        if not groups:  # retention, or a person, removed them since
            self._skip(Problem("the runs that were chosen are not stored any more"), ())
            return
        judgements: Sequence[Judgement] = ()
        if self._judge is not None:
            clock(Phase.SCORE)
            scored = self._score(plan, groups, self._judge)
            if scored is None:
                return
            groups, judgements = scored
        if self._judge is not None and not groups:
            self._skip(Problem("the judge could not score any of the groups"), ())
            return
        try:
            clock(Phase.BATCH)
            batch = self._loop.batch(groups)
            for line in left_out_lines(batch.left_out, calls=batch.quarantined):
                self._say(line)
            done = self._loop.train_on(batch, clock, beside=self._aside, judgements=judgements)
        except OtherWeights:
            self._note(plan=None)  # the next start leaves its runs out
            raise
        except (NotComputed, NothingToTrain) as error:
            self._skip(Problem(error.message) if isinstance(error, NotComputed) else error.message, groups)
            self._not_computed = self._not_computed + 1 if isinstance(error, NotComputed) else 0
            if self._not_computed >= self._config.max_skips:
                raise TrainingError(
                    f"{self._not_computed} rounds in a row could not be computed; the last: {error.message}",
                    f"{error.hint} The newest version stays as it is.",
                ) from error
            return
        self._pause(groups)
        self._not_computed = 0
        if done is None:
            self._skip(_EQUAL, groups)
        else:
            self._made(done, groups)

    def _score(
        self, plan: StepPlan, groups: list[Group], terms: JudgeTerms
    ) -> tuple[list[Group], Sequence[Judgement]] | None:
        """The groups with their scores, without those that the judge cannot score, and the judgements. None where some
        have to wait for the judge: then the next plan is made, of those that are scored and of others."""
        scored_keys: list[str] = []

        def keep(records: Sequence[Record]) -> None:
            self._retry(lambda: self._live_scores.append(self._store, records))
            scored_keys.extend(one.group for one in records if isinstance(one, Judgement))

        failed: dict[str, JudgeError] = {}
        began = time.monotonic()
        held = self._retry(lambda: judge(self._store, groups, terms, keep, failed))
        for key, error in failed.items():
            self._say(Problem(f"not scored: {key}: {error.message}"))
            self._unjudged.update(one.id for group in groups if group.key == key for one in group.trajectories)
        others = len(groups) > len(held) + len(failed) + len(scored_keys)
        self._unscored.take(held, scored_keys, others, time.monotonic() - began)
        if held:
            self._note(plan=None, unscored=self._unscored.waiting())
            return None
        scored = [group for group in self._groups(plan) if group.key not in failed]
        return scored, self._retry(lambda: terms.found(self._store, scored))

    def _made(self, done: PolicyStep, groups: Sequence[Group]) -> None:
        self._rewarded.append(msgspec.structs.replace(done, consumed=()))
        self._aside, self._ready_since = (), None
        self._note(
            step=done.step,
            plan=None,
            **self._noted_aside(),
            skips=0,
            reason="",
            hint="",
            last=done.metrics,
            last_groups=tuple(group_rewards(groups))[:_SHOWN_GROUPS],
        )
        self._on_step(done)
        status = self._gateway_status()
        mark, self._mark = self._mark, Mark.now(status)
        self._note(idle=idle_shares(mark, self._mark, done.metrics.get("step_s", 0.0)))
        self._note(reported=self._reported.tell(self._reporters))
        stay = (status.loaded_steps if status else set()) | self._checkpoints.kept()
        keep = self._config.keep
        self._checkpoints.prune(to_prune(self._checkpoints.steps(), version_rewards(self._rewarded), keep, stay))

    def _gateway_status(self) -> GatewayStatus | None:
        """What the gateway says, None when nobody serves."""
        return self._retry(self._gateway.status) if self._gateway else None

    def _skip(self, reason: str, groups: Sequence[Group]) -> None:
        """The round made no version: its runs are not looked at again, and the next manifest names them."""
        self._aside += tuple(
            Consumed(one.id, one.revision, set_aside=True) for group in groups for one in group.trajectories
        )
        self._ready_since = None
        skips = self.state.skips + 1
        self._note(plan=None, **self._noted_aside(), skips=skips, reason=f"{ROUND_SKIPPED}{reason}", hint="")
        self._say(same_level(reason, f"skipped: {reason}"))

    def _noted_aside(self) -> dict[str, Any]:
        return {"set_aside": self._aside[-_KEPT_ASIDE:], "aside": len(self._aside)}

    def _pause(self, groups: Sequence[Group]) -> None:
        """Skip the scenarios of groups whose rewards are all equal for a while, and the others no more."""
        now = time.time_ns()
        pauses, new = paused(self.state.pauses, group_rewards(groups), self._config.solved_pause, now)
        if new:
            first = duration_text((min(one.until_ns for one in new) - now) / 1e9)
            self._say(f"{quantity(len(new), 'scenario')} skipped for {first} or more: rewards are all equal")
        if pauses != self.state.pauses:
            self._note(pauses=pauses)

    def _pauses(self) -> list[Pause]:
        """Those that are not over."""
        now = time.time_ns()
        known = bounded(self.state.pauses, self._config.solved_pause, now)
        if known != self.state.pauses:
            self._note(pauses=known)
        return [one for one in known if one.until_ns > now]

    def _done(self) -> bool:
        if self._stop.is_set():
            raise StopRequested
        return self._config.max_steps is not None and self.state.step >= self._config.max_steps

    def _groups(self, plan: StepPlan) -> list[Group]:
        keys = [group.key for group in plan.groups]
        return group_trajectories(self._retry(lambda: self._store.trajectories(groups=keys, ids=plan.ids)))

    # --- the state, on disk and in memory ----------------------------------------------------------------------

    def _enter(self, state: str, reason: str = "", hint: str = "") -> None:
        skipped = state == Phase.WAIT and self.state.skips > 0
        keep = skipped or (state in (Phase.WAIT, Phase.SCORE) and bool(self._unscored.judge_down))
        why: dict[str, Any] = {} if keep else {"reason": reason, "hint": hint}
        self._note(state=str(state), since_ns=time.time_ns(), **why)

    def _trouble(self, error: ArttraceError | None) -> None:
        if error is None:
            self._say(f"{self.state.state}: going on")
            self._note(reason="", hint="")
        else:
            self._say(Problem(f"{self.state.state}: waiting, because {error.message}"))
            self._note(reason=error.message, hint=error.hint or "")

    def _note(self, **changes: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        try:
            write_state(self._checkpoints.directory, self.state)
            self._state_lost = False
        except OSError as error:  # nothing depends on it but what others see, and how far a restart repeats itself
            if not self._state_lost:
                self._say(Problem(f"the state file cannot be written: {error}"))
            self._state_lost = True
