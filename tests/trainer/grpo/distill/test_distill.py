"""`arttrace train --method distill` with real models: what it trains on, what it says, and what it leaves alone."""

from __future__ import annotations

import errno
import gc
import io
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from recorded_runs import recorded_group
from teacher_site import teacher_site
from tiny_model import make_base_model, reference_logprobs

from arttrace.commands import cli
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.sequence import TokenSequence
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.errors import TrainingError
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from trainer.commands.train.cli import command
from trainer.commands.train.settings import parse_settings
from trainer.grpo.distill import loaded as loaded_teacher
from trainer.grpo.distill.runs import SampledRun
from trainer.grpo.distill.teacher import require_same_tokens
from trainer.grpo.trainer import PolicyTrainer
from trainer.policies.base_tokenizer import read_tokenizer
from trainer.policies.checkpoints import Checkpoints

Train = Callable[..., Result]


def put(data: DataDir, records: Sequence[Record]) -> None:
    with Store.open(data, create=True) as store:
        store.append(list(records))


def teacher_kl(data: DataDir, teacher: Path, *, temperature: float = 1.0) -> float:
    """By transformers, over all that was sampled in the store."""
    away: list[float] = []
    with Store.open(data) as store:
        for run in store.trajectories():
            for one in sequences(run)[0]:
                ids = list(one.token_ids)
                rated = reference_logprobs(teacher, None, ids[:1], ids[1:], temperature)
                away += [
                    captured - rated[place - 1]
                    for place, captured in enumerate(one.logprobs)
                    if captured is not None and one.trained[place]
                ]
    return statistics.fmean(away)


@pytest.mark.parametrize("engine", ["packed", "trl"])
def test_single_runs_without_a_reward_are_trained_on(
    data: DataDir, better: Path, base_model: Path, train: Train, engine: str
) -> None:
    done = train("--teacher", str(better), "--engine", engine)
    assert done.exception is None, done.output
    said = [line for line in done.stderr.splitlines() if "tokens rated by" not in line]  # after five seconds
    assert said == [f"loading the teacher {better}", f"loading {base_model}"]
    kl = teacher_kl(data, better)
    first = done.stdout.splitlines()[0]
    assert first.startswith(
        f"policy@1: 4 trajectories, 40 tokens trained, {kl:.3f} nats per token from the teacher, loss "
    )
    checkpoints = Checkpoints(data.policies, "policy")
    manifest = checkpoints.manifest(1)
    assert manifest.method == "distill"
    assert manifest.metrics["teacher_kl"] == pytest.approx(kl, abs=1e-4)
    assert manifest.metrics["grad_norm"] > 0
    assert manifest.metrics["reward_mean"] == 1.0, "of the only one that has a reward"
    assert "groups" not in manifest.metrics
    assert checkpoints.consumed_ids("distill") == {"a-0", "a-1", "a-2", "b-0"}
    assert not checkpoints.consumed_ids("grpo")
    again = train("--teacher", str(better), "--engine", engine)
    assert isinstance(again.exception, TrainingError)
    assert again.exception.message.startswith("There is nothing new to train on: no trajectory that this policy has ")


def test_the_advantage_of_each_token_is_kept_beside_the_version(data: DataDir, better: Path, train: Train) -> None:
    assert train("--teacher", str(better)).exception is None
    shown = CliRunner().invoke(cli, ["show", "--dir", str(data.root), "b-0", "--tokens", "--json"])
    (learned,) = json.loads(shown.stdout)["learned"]
    assert learned["advantage"] is None
    with Store.open(data) as store:
        ((one,), _) = sequences(store.trajectories(ids=["b-0"])[0])
    ids = list(one.token_ids)
    rated = reference_logprobs(better, None, ids[:1], ids[1:])
    expected = [rated[place - 1] - one.logprobs[place] for place in learned["places"]]
    assert learned["advantages"] == pytest.approx(expected, abs=1e-3)
    told = CliRunner().invoke(cli, ["show", "--dir", str(data.root), "b-0", "--tokens"]).stdout
    assert f"advantages {min(expected):+.3f} to {max(expected):+.3f}" in " ".join(told.split())


def test_a_served_teacher_says_the_same_and_is_sent_what_runs_share_once(
    data: DataDir, better: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTTRACE_TEACHER_API_KEY", "k3y")
    with teacher_site(better, lambda path, number: (503, b"busy") if number == 1 else None) as site:
        done = train("--teacher", site.url, "--json")
    assert done.exception is None, done.output
    step = json.loads(done.stdout)
    assert step["metrics"]["teacher_kl"] == pytest.approx(teacher_kl(data, better), abs=1e-4)
    assert len(site.prompts) == 4, "a run of two calls is one prompt"
    assert site.keys == {"Bearer k3y"}
    assert site.asked["/v1/models"] == 2, "tried again"


def test_steps_share_out_the_runs_and_the_teacher_rates_before_the_first(
    data: DataDir, better: Path, train: Train
) -> None:
    done = train("--teacher", str(better), "--steps", "2", "--json")
    assert done.exception is None, done.output
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["version"] for step in made] == ["policy@1", "policy@2"]
    assert [step["metrics"]["trajectories"] for step in made] == [2, 2]
    assert done.stderr.count("loading the teacher") == 1
    kl = statistics.fmean(step["metrics"]["teacher_kl"] for step in made)
    assert kl == pytest.approx(teacher_kl(data, better), abs=1e-4)


def test_one_steps_runs_at_a_time_are_in_memory(
    data: DataDir, better: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids and advantages of all of them were held before the first step, 120 bytes a token. The teacher rates each
    step's in its turn, loaded once; in the file where they wait they are whole."""
    loaded: list[Path] = []
    load = loaded_teacher.make_learner
    monkeypatch.setattr(loaded_teacher, "make_learner", lambda *given: loaded.append(given[0]) or load(*given))
    rated: list[int] = []
    most: list[int] = []

    def in_memory() -> None:
        gc.collect()
        most.append(sum(type(one) is SampledRun for one in gc.get_objects()))

    rate = loaded_teacher.LoadedTeacher.rate

    def rating(self: Any, some: Sequence[TokenSequence], told: Any) -> Any:
        in_memory()
        rated.append(len({one.trajectory_id for one in some}))
        return rate(self, some, told)

    train_on = PolicyTrainer.train_on

    def training(self: Any, *given: Any) -> Any:
        in_memory()
        return train_on(self, *given)

    monkeypatch.setattr(loaded_teacher.LoadedTeacher, "rate", rating)
    monkeypatch.setattr(PolicyTrainer, "train_on", training)
    put(data, recorded_group("c", (None,) * 8, at=9000))
    done = train("--teacher", str(better), "--steps", "6", "--json")
    assert done.exception is None, done.output
    assert len(done.stdout.splitlines()) == 6
    assert (loaded, rated) == ([better], [2] * 6)
    assert len(most) == 12
    assert max(most) <= 6, "of 12: a step's as they were sampled, and those of them that can be rated"


def test_a_loaded_teacher_is_gone_before_the_engines_wake_up(
    data: DataDir, better: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    @contextmanager
    def asleep(*_: Any, **__: Any) -> Iterator[bool]:
        events.append("asleep")
        yield True
        events.append("awake")

    close = loaded_teacher.LoadedTeacher.close

    def closing(self: Any) -> None:
        assert "_learner" in vars(self)
        close(self)
        assert "_learner" not in vars(self)
        events.append("gone")

    monkeypatch.setattr("trainer.commands.train.sampled.distill.engines_asleep", asleep)
    monkeypatch.setattr(loaded_teacher.LoadedTeacher, "close", closing)
    done = train("--teacher", str(better))
    assert done.exception is None, done.output
    assert events == ["asleep", "gone", "awake"]


def test_a_disk_without_room_for_what_waits_ends_it_before_anything_is_loaded(
    data: DataDir, better: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full(io.BytesIO):
        write = full

    monkeypatch.setattr("trainer.grpo.distill.kept.tempfile.TemporaryFile", lambda dir: Full())
    failed = train("--teacher", str(better)).exception
    assert isinstance(failed, TrainingError)
    assert failed.message.endswith("until its step: No space left on device.")
    assert "Free disk space" in str(failed.hint)


def test_a_plan_counts_the_steps_that_can_be_made(data: DataDir, better: Path, train: Train) -> None:
    """One run is at another temperature than a served teacher can rate: its step is not made."""
    put(data, hot())
    with teacher_site(better) as site:
        plan = train("--teacher", site.url, "--steps", "5", "--dry-run", "--json")
        done = train("--teacher", site.url, "--steps", "5", "--json")
    assert (plan.exception, done.exception) == (None, None), plan.output + done.output
    said = json.loads(plan.stdout)
    assert (said["steps"], said["trajectories"], said["tokens_captured"], said["tokens_trained"]) == (4, 4, 50, 40)
    assert len(done.stdout.splitlines()) == said["steps"]


def test_what_is_left_out_is_counted(data: DataDir, better: Path, train: Train) -> None:
    put(data, tagged(recorded_group("held", (None,)), semconv.HELD_OUT_TAG))
    put(data, tagged(recorded_group("other", (None,)), semconv.NOT_TRAINABLE_TAG))
    put(data, recorded_group("foreign", (None, None), policy="another@3"))
    put(data, recorded_group("later", (None,), policy="policy@7"))
    expected = {
        "held out from training": 1,
        "of an agent that is not to be trained": 1,
        "no tokens of this policy": 2,
        "sampled by a version not made here": 1,
    }
    plan = train("--teacher", str(better), "--dry-run", "--json")
    assert plan.exception is None, plan.output
    assert json.loads(plan.stdout) == {
        "policy": "policy",
        "method": "distill",
        "teacher": "better",
        "steps": 1,
        "trajectories": 4,
        "tokens_captured": 40,
        "tokens_trained": 40,
        "trajectories_left_out": expected,
        "calls_quarantined": {},
        "already_trained_on": {},
    }
    told = train("--teacher", str(better), "--dry-run")
    assert told.stdout.splitlines()[:2] == [
        "policy would be distilled from better on 4 trajectories.",
        "  40 of 40 sampled tokens would be trained.",
    ]
    assert "  left out: 2 trajectories (no tokens of this policy)" in told.stdout.splitlines()
    done = train("--teacher", str(better))
    assert done.exception is None, done.output
    assert "left out: 1 trajectory (held out from training)" in done.stderr.splitlines()
    assert Checkpoints(data.policies, "policy").manifest(1).metrics["trajectories_left_out"] == sum(expected.values())
    assert len(Checkpoints(data.policies, "policy").consumed_ids("distill")) == 4


def hot() -> list[Record]:
    """A run at temperature 0.5."""
    asked = {semconv.REQUEST_TEMPERATURE: 0.5, semconv.SAMPLING: "processed"}
    return [
        msgspec.structs.replace(one, attributes={**one.attributes, **asked}) if isinstance(one, SpanRow) else one
        for one in recorded_group("hot", (None,), at=9000)
    ]


def tagged(records: list[Record], tag: str) -> list[Record]:
    return [
        msgspec.structs.replace(one, attributes={**one.attributes, semconv.TAGS: [tag]})
        if isinstance(one, SpanRow) and one.parent_span_id is None
        else one
        for one in records
    ]


def test_tokens_that_the_teacher_cannot_rate_are_left_out(data: DataDir, better: Path, train: Train) -> None:
    """Each run has 6 tokens of prompt, 5 sampled, 3 of prompt, 5 sampled."""
    with teacher_site(better, cards=({"id": "better", "max_model_len": 13},)) as site:
        plan = train("--teacher", site.url, "--dry-run", "--json")
        assert not site.prompts
        done = train("--teacher", site.url)
    assert done.exception is None, done.output
    assert {len(prompt) for prompt in site.prompts} == {11}, "up to the last one that it can rate"
    said = "left out: 20 tokens (beyond the 12 tokens of the teacher's context)"
    assert said in done.stderr.splitlines()
    metrics = Checkpoints(data.policies, "policy").manifest(1).metrics
    assert (metrics["tokens_trained"], metrics["tokens_unrated"], metrics["tokens_quarantined"]) == (20, 20, 0)
    assert json.loads(plan.stdout)["tokens_trained"] == 20


def test_tokens_for_which_the_teacher_has_no_probability_are_said_to_be_so(
    data: DataDir, better: Path, train: Train
) -> None:
    with Store.open(data) as store:
        sampled = [
            (id, trained)
            for run in store.trajectories()
            for one in sequences(run)[0]
            for id, trained in zip(one.token_ids, one.trained, strict=True)
        ]
    unknown = {next(id for id, trained in sampled if trained)}
    count = sum(1 for id, trained in sampled if trained and id in unknown)
    with teacher_site(better, impossible=unknown) as site:
        done = train("--teacher", site.url)
    assert done.exception is None, done.output
    tokens = "1 token" if count == 1 else f"{count} tokens"
    assert f"left out: {tokens} (without a log-probability by the teacher)" in done.stderr.splitlines()


def test_a_teacher_that_can_rate_nothing_is_an_error(data: DataDir, better: Path, train: Train) -> None:
    with teacher_site(better, cards=({"id": "better", "max_model_len": 6},)) as site:
        done = train("--teacher", site.url)
    assert isinstance(done.exception, TrainingError)
    assert done.exception.message.startswith("The teacher better can rate none of the 40 tokens")
    assert not site.prompts
    assert not Checkpoints(data.policies, "policy").steps()


@pytest.mark.parametrize("served", [True, False])
def test_the_temperature_at_which_tokens_were_sampled(data: DataDir, better: Path, train: Train, served: bool) -> None:
    """A loaded teacher rates at that of the sampling, so that a policy has nothing to learn from itself; a server knows
    its tokens at temperature 1 alone."""
    put(data, hot())
    with teacher_site(better) as site:
        done = train("--teacher", site.url if served else str(better))
    assert done.exception is None, done.output
    said = "left out: 10 tokens (sampled at another temperature than 1)"
    assert (said in done.stderr.splitlines()) is served
    metrics = Checkpoints(data.policies, "policy").manifest(1).metrics
    assert metrics["tokens_trained"] == (40 if served else 50)
    assert metrics["tokens_unrated"] == (10 if served else 0)


def test_another_tokenizer_is_refused_by_the_token(
    data: DataDir, base_model: Path, tmp_path: Path, train: Train
) -> None:
    other = make_base_model(tmp_path / "other", seed=1)
    file = other / "tokenizer.json"
    document = json.loads(file.read_text())
    words = document["model"]["vocab"]
    words |= {letter: words[letter.swapcase()] for letter in words if letter.isascii() and letter.isalpha()}
    file.write_text(json.dumps(document))
    with teacher_site(other) as site:
        for named in (str(other), site.url):
            done = train("--teacher", named)
            assert isinstance(done.exception, TrainingError)
            assert f"has another tokenizer than {base_model}: token " in done.exception.message
        assert not site.prompts
    assert not Checkpoints(data.policies, "policy").steps()


class Splits:
    """A teacher whose text is the policy's for some lists of token ids alone."""

    name, longest, any_temperature, on_device = "splits", None, True, True

    def __init__(self, own: Any, differs: Callable[[Sequence[int]], bool]) -> None:
        self.own, self.differs = own, differs

    def text(self, ids: Sequence[int]) -> str | None:
        return str(self.own.decode(list(ids))) + ("!" if self.differs(ids) else "")


def test_tokens_that_differ_only_beside_each_other_are_refused(data: DataDir, base_model: Path) -> None:
    """Each half by itself has the same text: the comparison ended there without an error."""
    with Store.open(data) as store:
        some = {id for run in store.trajectories() for one in sequences(run)[0] for id in one.token_ids}
    own = read_tokenizer(base_model)
    with pytest.raises(TrainingError, match=r"has another tokenizer than .*: tokens "):
        require_same_tokens(Splits(own, lambda ids: len(ids) > 2), base_model, some)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--method distill", "--method distill needs the model to learn from: --teacher URL|DIR|NAME"),
        ("--teacher DIR", "--teacher is an option of --method distill, and does nothing for grpo"),
        (
            "--method sft --teacher-model x",
            "--teacher-model is an option of --method distill, and does nothing for sft",
        ),
        ("--method distill --teacher x --std-floor 1", "--std-floor is an option of --method grpo, and does nothing"),
        ("--method distill --teacher DIR --daemon", "--daemon trains by GRPO"),
    ],
)
def test_options_that_do_not_fit_are_refused(data: DataDir, arguments: str, said: str) -> None:
    refused = CliRunner().invoke(command, ["--dir", str(data.root), *arguments.split()])
    assert (refused.exit_code, said in refused.output) == (2, True), refused.output


def test_a_loop_orders_no_distillation() -> None:
    with pytest.raises(TrainingError, match="have no method 'distill'"):
        parse_settings({"method": "distill", "teacher": "models/better"})
