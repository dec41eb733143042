"""`arttrace show --tokens`, `--agent` and `--raw`."""

from __future__ import annotations

import json
import math
import struct
from array import array
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from simulated_agent import Run, message, research_run

from arttrace.commands import cli
from arttrace.commands.inspect.show import json_pieces
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.values import learned_tokens
from arttrace.records.values.learned_tokens import (
    CLIPPED,
    FAR,
    LEARNED_TOKENS,
    LEFT_OUT,
    MASKED,
    Columns,
    encode_learned,
    little_endian,
    sequence_key,
)
from arttrace.records.values.tokens import plain
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories, sequences
from arttrace.views.web.models.tokens import learned as learned_module


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("show")
    with Store.open(DataDir(root), create=True) as store:
        store.append(research_run("run-1", "s"))
    return root


def show(root: Path, *arguments: str, **environment: str) -> Result:
    arguments = ("show", "run-1", *arguments, "--dir", str(root))
    return CliRunner().invoke(cli, arguments, catch_exceptions=False, env=environment)


def test_sequences_as_the_learner_sees_them(root: Path) -> None:
    with Store.open(DataDir(root)) as store:
        run = store.trajectory("run-1")
    made, _ = sequences(run)
    shown = show(root, "--tokens").output
    text = " ".join(shown.split())
    for number, one in enumerate(made):
        assert f"sequence {number + 1} of {len(made)} agent" in text
        assert f"{one.trained_tokens} of {len(one.token_ids)} tokens trained" in text
    assert "tokens stand as numbers" in text
    first = made[0]
    place = first.trained.index(1)
    assert f" {first.token_ids[place]} " in text
    assert f"{math.exp(first.logprobs[place] or 0):.4f} at {place}" in text
    coloured = show(root, "--tokens", FORCE_COLOR="1", COLORTERM="truecolor", TERM="xterm-256color").output
    assert "\x1b[36m" in coloured  # a probability of 0.61
    assert "policy@1" in text


def test_the_text_of_tokens_and_context_in_short(root: Path, tmp_path: Path) -> None:
    with Store.open(DataDir(root)) as store:
        made, _ = sequences(store.trajectory("run-1"))
    model = tmp_path / "model"
    model.mkdir()
    vocabulary = {f"w{id}x\x1b{'y' * 30}": id for one in made for id in one.token_ids}
    (model / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary}}))
    serving = DataDir(root).serving
    serving.parent.mkdir(exist_ok=True)
    serving.write_text(json.dumps({"base_model": str(model)}))
    try:
        short, whole = (" ".join(show(root, "--tokens", *more).output.split()) for more in ((), ("--wide",)))
    finally:
        serving.unlink()
    assert f"w{made[0].token_ids[0]}x·" in short
    assert "\x1b" not in whole
    assert "characters …" in short
    assert "characters …" not in whole


def test_what_a_step_computed_for_each_token(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(DataDir(tmp_path / "store"), create=True) as store:
        store.append(research_run("run-1", "s"))
        run = store.trajectory("run-1")
        made, _ = sequences(run)
        one = made[0]
        places = [place for place, trained in enumerate(one.trained) if trained]
        flags = [CLIPPED, MASKED, LEFT_OUT, FAR]
        numbers = [-0.25, -7.0, -0.75, *[-0.5] * (len(places) - 3)]
        columns = Columns(
            sequence_key(one),
            0.4,
            little_endian(array("I", places)),
            struct.pack(f"<{len(places)}e", *numbers),
            struct.pack(f"<{len(places)}e", *[1.5] * len(places)),
            bytes([*flags, *[0] * (len(places) - 4)]),
        )
        adapter = tmp_path / "policy@1"
        adapter.mkdir()
        room = len(places) * 9 + 64
        other = columns._replace(key="another")
        monkeypatch.setattr(learned_tokens, "MOST_BYTES", room)
        (adapter / LEARNED_TOKENS).write_bytes(encode_learned([columns, other]))
        monkeypatch.undo()
        consumed = (Consumed(run.id, run.revision),)
        store.append([PolicyStep("policy", 1, str(adapter), consumed, method="grpo")])
    root = tmp_path / "store"
    text = " ".join(show(root, "--tokens").output.split())
    assert (
        f"learner, step policy@1: advantage +0.400, of {len(places)} tokens 1 clipped, 1 masked, 1 left out, "
        "1 far apart; log-probabilities farthest from the engine's:"
    ) in text
    assert f"-7.000 (engine {one.logprobs[places[1]] or 0:.3f}) at {places[1]}" in text
    for missing in made[1:]:
        assert f"no numbers of this sequence: its advantage was 0, or it is among the {len(places)} tokens" in text, (
            missing
        )
    read: list[object] = []
    decode = learned_module.decode_learned
    monkeypatch.setattr(learned_module, "decode_learned", lambda *given: read.append(given) or decode(*given))
    first, *others = json.loads(show(root, "--json").output)["learned"]
    assert len(read) == 1, "the file is read once, however many sequences there are"
    assert first == {
        "version": "policy@1",
        "advantage": 0.4,
        "places": places,
        "logprobs": numbers,
        "ratios": [1.5] * len(places),
        **{
            name: [number == at for number in range(len(places))]
            for at, name in enumerate(("clipped", "masked", "left_out", "far"))
        },
        "without_room": len(places),
    }
    assert others
    for empty in others:
        assert (empty["places"], empty["without_room"]) == ([], len(places))


def test_a_run_is_written_as_json_call_by_call() -> None:
    """The calls of a long run were in memory as one text, each with its whole prompt."""
    run = Run("long")
    history = [message("user", "start")]
    for turn in range(30):
        history.append(run.chat(f"c{turn}", history, message("assistant", f"said {turn}"), at=10 * turn))
        history.append(message("user", f"on {turn}"))
    [trajectory] = build_trajectories(run.end(at=400))
    beside = {"links": ["x"], "used": {"input": 1}}
    pieces = list(json_pieces(trajectory, beside))
    assert b"".join(pieces) == msgspec.json.encode({"trajectory": trajectory, **beside}, enc_hook=plain)
    assert max(map(len, pieces)) < sum(map(len, pieces)) / 10


def test_one_agent_and_those_below_it(root: Path) -> None:
    shown = show(root, "--agent", "research").output
    assert "agent research" in shown
    assert "agent planner" not in shown
    whole = json.loads(show(root, "--json").output)
    names = {agent["name"]: agent["id"] for agent in whole["trajectory"]["agents"]}
    part = json.loads(show(root, "--agent", names["research"], "--json").output)
    assert {call["agent_id"] for call in part["trajectory"]["calls"]} <= {*names.values()} - {names["planner"]}
    assert part["tokens"]["captured_tokens"] < whole["tokens"]["captured_tokens"]
    for one in (part, whole):
        assert one["cost"]["unpriced_calls"] == len(one["trajectory"]["calls"]) > 0
    with pytest.raises(ArttraceError, match="no agent 'nobody'"):
        show(root, "--agent", "nobody")


def test_spans_as_they_came(root: Path) -> None:
    spans = [json.loads(line) for line in show(root, "--raw").output.splitlines()]
    assert {span["span_id"] for span in spans} == {span.span_id for span in research_run("run-1", "s")}
    assert all(span["attributes"] for span in spans)


def test_what_does_not_go_together_is_refused(root: Path) -> None:
    for options in (("--raw", "--tokens"), ("--follow", "--json"), ("--raw", "--agent", "x")):
        assert show(root, *options).exit_code == 2
