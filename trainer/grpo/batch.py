"""Pure: scored groups become the samples of one step, and everything left out is counted with its reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from arttrace.records.group import Group
from arttrace.records.policy import Consumed, answered
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Agent, Trajectory
from arttrace.records.values.equal_rewards import are_equal
from arttrace.trajectories import sequences
from trainer.grpo.advantages import STD_FLOOR, Scale, group_advantages, is_floored, standard_deviation
from trainer.grpo.selection import compared, staleness
from trainer.learner.interface import Sample
from trainer.policies.made_here import MadeHere


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """What one step trains on, and what it does not.

    `samples` holds one entry per trajectory with trainable tokens. `consumed` names every trajectory whose reward
    entered an advantage. `left_out` counts trajectories by the reason they were dropped (one that is alone in its
    group needs company before a reward), `quarantined` calls by the reason their tokens are not trained. `rewards` are
    those of the consumed trajectories, group by group. `policy_rewards` are those of the consumed trajectories that the
    policy answered in, `agent_rewards` what was given in these to agents by themselves, by their names; `staleness` is
    that of the samples' trajectories, in steps before version `step`, which the batch was made for. `equal_groups` are
    those whose rewards are all equal, their agents' own too: they teach nothing, and stay in the normaliser.
    `floored_groups` are those whose rewards, or an agent's, differ by less than the floor under their standard
    deviation.

    `method` is "grpo" or "distill". In a distillation there are no groups; `unrated_tokens` are the sampled tokens that
    the teacher did not rate, `teacher_kl` the estimate of KL(sampler || teacher) by those trained, in nats per token.
    """

    method: str = "grpo"
    step: int = 0
    samples: tuple[Sample, ...] = ()
    consumed: tuple[Consumed, ...] = ()
    rewards: tuple[tuple[float, ...], ...] = ()
    policy_rewards: tuple[float, ...] = ()
    agent_rewards: dict[str, tuple[float, ...]] = field(default_factory=dict)
    staleness: tuple[int, ...] = ()
    equal_groups: int = 0
    floored_groups: int = 0
    captured_tokens: int = 0
    trained_tokens: int = 0
    unrated_tokens: int = 0
    teacher_kl: float = 0.0
    left_out: dict[NotTrained, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)

    @property
    def reward_mean(self) -> float:
        """Mean reward of the trajectories that the policy answered in; 0.0 when there are none."""
        return sum(self.policy_rewards) / len(self.policy_rewards) if self.policy_rewards else 0.0

    @property
    def reward_spread(self) -> float:
        """Mean over groups of (largest - smallest reward) within the group; 0.0 when there are none."""
        return sum(max(g) - min(g) for g in self.rewards) / len(self.rewards) if self.rewards else 0.0


def make_batch(
    groups: Sequence[Group],
    *,
    policy: str | None = None,
    scale: Scale = "none",
    std_floor: float = STD_FLOOR,
    step: int = 0,
    max_staleness: int | None = None,
    made: MadeHere | None = None,
    refused: Collection[str] = (),
) -> TrainingBatch:
    """Samples of every group with at least two complete, rewarded trajectories; targets are the tokens that a version
    of `policy` sampled (None: whoever sampled them).

    A trajectory without trainable tokens keeps its place in the group's baseline but is no sample. One trajectory is
    one sample: all its sequences share one advantage, but for those of an agent that was rewarded by itself. With
    `max_staleness`, a trajectory of which any version more than so many steps older than `step` sampled a part is left
    out: its group is compared without it. So is one of which a version of `policy` sampled a part that is not among
    `made` (None: any is), and one whose id is among `refused`.
    """
    chosen: list[list[tuple[Trajectory, float]]] = []
    left_out: Counter[NotTrained] = Counter()
    for group in groups:
        runs = [run for run in group.trajectories if run.id not in refused]
        left_out[NotTrained.OTHER_WEIGHTS] += len(group.trajectories) - len(runs)
        parts, reasons = compared(runs, policy=policy, step=step, max_staleness=max_staleness, made=made)
        left_out.update(reasons)
        chosen += parts
    rewards = [tuple(reward for _, reward in scored) for scored in chosen]
    by_role = [_agent_rewards([trajectory for trajectory, _ in scored]) for scored in chosen]
    scaling = _Scaling(scale, std_floor, rewards, by_role)
    own = [(run, reward) for scored in chosen for run, reward in scored if answered(run.policy_versions, policy)]
    samples: list[Sample] = []
    consumed: list[Consumed] = []
    ages: list[int] = []
    quarantined: Counter[str] = Counter()
    equal = floored = captured = trained = 0
    for scored, values, roles in zip(chosen, rewards, by_role, strict=True):
        of_agents = scaling.of_agents(roles)
        equal += are_equal(values) and not _differ(roles)
        floored += scaling.is_floored(values, roles)
        for (trajectory, _), advantage in zip(scored, scaling.of_trajectories(values), strict=True):
            consumed.append(Consumed(trajectory.id, trajectory.revision))
            found, report = sequences(trajectory, policy=policy)
            captured += report.captured_tokens
            quarantined.update(report.reasons)
            if report.trained_tokens == 0:
                left_out[NotTrained.NO_TRAINABLE_TOKENS] += 1
                continue
            ages.append(staleness(trajectory, step, policy))
            trained += report.trained_tokens
            samples.append(Sample(found, advantage, of_agents.get(trajectory.id, {})))
    return TrainingBatch(
        step=step,
        samples=tuple(samples),
        consumed=tuple(consumed),
        rewards=tuple(rewards),
        policy_rewards=tuple(reward for _, reward in own),
        agent_rewards=_by_name([trajectory for trajectory, _ in own]),
        staleness=tuple(ages),
        equal_groups=equal,
        floored_groups=floored,
        captured_tokens=captured,
        trained_tokens=trained,
        left_out=dict(+left_out),
        quarantined=dict(quarantined),
    )


_Roles = dict[tuple[str, ...], list[tuple[str, str, float]]]
"""By role (the names from the root down to the agent): trajectory id, agent id and reward of each that was rewarded by
itself; those without another to compare with are left out."""


@dataclass(frozen=True, slots=True)
class _Scaling:
    """How the rewards of one step become advantages. Agents of a role are compared with each other, in their group."""

    scale: Scale
    floor: float
    rewards: Sequence[Sequence[float]]
    by_role: Sequence[_Roles]

    def of_trajectories(self, values: Sequence[float]) -> list[float]:
        """The advantages of one group."""
        return group_advantages(values, scale=self.scale, std_floor=self.floor, batch_std=self._batch_std(None))

    def of_agents(self, roles: _Roles) -> dict[str, dict[str, float]]:
        """By trajectory and agent id, the advantage of agents that were rewarded by themselves."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for role, members in roles.items():
            values = [value for _, _, value in members]
            advantages = group_advantages(
                values, scale=self.scale, std_floor=self.floor, batch_std=self._batch_std(role)
            )
            for (trajectory_id, agent_id, _), advantage in zip(members, advantages, strict=True):
                found[trajectory_id][agent_id] = advantage
        return found

    def is_floored(self, values: Sequence[float], roles: _Roles) -> bool:
        """Whether the floor holds for one group, or for the agents of a role in it."""
        compared_values = [(None, values), *((role, [one[2] for one in members]) for role, members in roles.items())]
        return any(
            is_floored(some, scale=self.scale, std_floor=self.floor, batch_std=self._batch_std(role))
            for role, some in compared_values
        )

    def _batch_std(self, role: tuple[str, ...] | None) -> float | None:
        """Of all trajectories' rewards in the step, or of all agents' of a role."""
        if self.scale != "batch":
            return None
        if role is None:
            return standard_deviation([value for values in self.rewards for value in values])
        return standard_deviation([one[2] for roles in self.by_role for one in roles.get(role, ())])


def agents_differ(trajectories: Sequence[Trajectory]) -> bool:
    """Whether the runs of a group have agents of one role that were rewarded by themselves, and not alike."""
    return _differ(_agent_rewards(trajectories))


def _differ(roles: _Roles) -> bool:
    return not all(are_equal([value for _, _, value in members]) for members in roles.values())


def _own_rewards(trajectory: Trajectory) -> dict[str, float]:
    """By agent id, the rewards of agents that were rewarded by themselves."""
    given: dict[str, float] = defaultdict(float)
    for reward in trajectory.rewards:
        if reward.agent_id is not None:
            given[reward.agent_id] += reward.value
    return given


def _by_name(trajectories: Sequence[Trajectory]) -> dict[str, tuple[float, ...]]:
    found: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        names = {agent.id: agent.name for agent in trajectory.agents}
        for agent_id, value in _own_rewards(trajectory).items():
            if agent_id in names:
                found[names[agent_id]].append(value)
    return {name: tuple(values) for name, values in sorted(found.items())}


def _agent_rewards(trajectories: Sequence[Trajectory]) -> _Roles:
    by_role: _Roles = defaultdict(list)
    for trajectory in trajectories:
        agents = {agent.id: agent for agent in trajectory.agents}
        for agent_id, value in _own_rewards(trajectory).items():
            if agent_id in agents:
                by_role[_role(agent_id, agents)].append((trajectory.id, agent_id, value))
    return {role: members for role, members in by_role.items() if len(members) > 1}


def _role(agent_id: str, agents: Mapping[str, Agent]) -> tuple[str, ...]:
    names: list[str] = []
    seen: set[str] = set()
    at: str | None = agent_id
    while at is not None and at in agents and at not in seen:
        seen.add(at)
        names.append(agents[at].name)
        at = agents[at].parent_id
    return tuple(reversed(names))
