"""The token sequences of a run: which tokens were trained, how likely they were, and why the others are left out."""

from __future__ import annotations

import json
import math
import re
import struct
from array import array
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from simulated_agent import research_run
from starlette.testclient import TestClient
from viewer_site import KEY, Viewer

from arttrace.records import semconv
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.sequence import NotTrained
from arttrace.records.values.learned_tokens import (
    CLIPPED,
    LEARNED_TOKENS,
    LEFT_OUT,
    MASKED,
    Columns,
    encode_learned,
    little_endian,
    sequence_key,
)
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories, sequences
from arttrace.views.web.app import create_app
from arttrace.views.web.models.tokens.token_page import WORDS, advantages, tokens
from arttrace.views.web.models.tokens.token_pieces import pieces_of


def test_which_tokens_were_trained_is_found_in_three_clicks(page: Page, viewer: Viewer) -> None:
    page.locator("#newest tr[id]", has_text="lisbon weekend").first.click()
    page.get_by_role("link", name="Tokens").click()
    trained = "".join(page.locator(".tokens .t").all_inner_texts())
    assert "Let me look that up." in trained
    assert "I would rather not plan this." in trained
    context = "".join(page.locator(".tokens .c").all_inner_texts())
    assert "You plan short trips" in context
    assert "rather not" not in context


def test_a_trained_token_says_how_likely_it_was_and_who_sampled_it(page: Page, viewer: Viewer) -> None:
    [run] = [run for run in viewer.store.summaries() if run.group == "lisbon week"]
    page.goto(f"{viewer.url}/runs/{run.id}/tokens?sequence=1")
    made, _ = sequences(viewer.store.trajectory(run.id))
    place = made[1].trained.index(1)
    said = page.locator(f"#t{place}").get_attribute("title") or ""
    assert f"probability {math.exp(made[1].logprobs[place] or 0):.4f}" in said
    assert "policy@3" in said
    expect(page.locator("aside")).to_contain_text("regeneration, the same prompt")


def test_what_is_left_out_is_reported_in_words(page: Page, viewer: Viewer) -> None:
    [run] = [run for run in viewer.store.summaries() if run.group == "porto"]
    page.goto(f"{viewer.url}/runs/{run.id}/tokens")
    expect(page.locator("#left-out")).to_contain_text("sampling was narrowed or shifted 2 calls")
    expect(page.locator("#left-out")).to_contain_text("Leave top_p at 1")
    ids = {placed.call.span_id for placed in viewer.store.trajectory(run.id).calls}
    said = page.locator("#left-out a").all_inner_texts()
    assert len(said) == 2
    assert set(said) < ids, "whole, since two may begin alike"


@pytest.mark.parametrize("method", ["sft", "dpo"])
@pytest.mark.parametrize("sampled", [True, False])
def test_a_run_that_was_trained_on_by_its_text_says_why_its_tokens_have_no_numbers(
    tmp_path: Path, method: str, sampled: bool
) -> None:
    spans = research_run("run")
    if not sampled:  # as what another model said
        for span in spans:
            span.attributes.pop(semconv.TOKEN_IDS, None)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(spans)
        [run] = store.trajectories()
        consumed = (Consumed(run.id, run.revision),)
        store.append([PolicyStep(policy="writer", step=1, adapter="gone", consumed=consumed, method=method)])
        client = TestClient(create_app(store, KEY), base_url="http://localhost")
        shown = client.get("/runs/run/tokens", headers={"authorization": f"Bearer {KEY}"}).text
    assert re.search(rf"writer@1</a> by {method.upper()}", shown)
    assert "keeps no numbers of single tokens. What is marked here is what GRPO trains." in shown
    assert "the advantage was 0" not in shown
    assert ("No token that GRPO could train" in shown) is not sampled


def test_a_method_of_a_later_version_is_named_as_it_is(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("run"))
        [run] = store.trajectories()
        consumed = (Consumed(run.id, run.revision),)
        store.append([PolicyStep(policy="writer", step=1, adapter="gone", consumed=consumed, method="rloo")])
        client = TestClient(create_app(store, KEY), base_url="http://localhost")
        shown = client.get("/runs/run/tokens", headers={"authorization": f"Bearer {KEY}"}).text
    assert "writer@1</a> by rloo" in shown


def test_every_reason_of_a_call_has_words() -> None:
    of_calls = [
        one for one in NotTrained if list(NotTrained).index(one) < list(NotTrained).index(NotTrained.INCOMPLETE)
    ]
    assert set(of_calls) == set(WORDS)


def test_stretches_of_a_sequence_are_the_whole() -> None:
    [run] = build_trajectories(research_run("run"))
    for one in sequences(run)[0]:
        for size in (1, 3, 1000):
            found = [token for first in range(0, len(one.token_ids), size) for token in tokens(one, {}, first, size)]
            assert sum(token.count for token in found) == len(one.token_ids)
            assert [token.place for token in found if token.trained] == [
                place for place, trained in enumerate(one.trained) if trained
            ]


BYTES = {"decoder": {"type": "ByteLevel"}, "model": {"vocab": {"\u0120gr\u00c3\u00bc\u00c3\u0141": 5}}}
SCORED = {"decoder": None, "model": {"vocab": [["<unk>", 0], ["\u2581so", -1.5], ["<0x0A>", -2]]}}
ADDED = {"decoder": None, "model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 9, "content": "<|end|>"}]}


@pytest.mark.parametrize(
    ("whole", "texts"), [(BYTES, {5: " grüß"}), (SCORED, {1: " so", 2: "\n"}), (ADDED, {9: "<|end|>"})]
)
def test_pieces_are_read_from_vocabularies(tmp_path: Path, whole: object, texts: dict[int, str]) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    pieces = pieces_of(str(tmp_path))
    assert {id: pieces[id].decode() for id in texts} == texts
    (tmp_path / "tokenizer.json").write_text("no tokenizer")
    assert pieces_of(str(tmp_path)) == {}
    assert pieces_of("") == {}


def test_the_advantage_is_that_of_the_default_scale() -> None:
    found = advantages([{"a": 0.9, "b": 0.5, "c": 0.1}, {"d": 0.1, "e": 0.2}])
    expected = {"a": 0.4, "b": 0.0, "c": -0.4, "d": -0.05, "e": 0.05}
    assert {id: one.value for id, one in found.items()} == pytest.approx(expected)
    assert advantages([{"a": 0.5}]) == {}
    assert {one.value for one in advantages([dict.fromkeys("abc", 0.1)]).values()} == {0.0}


def test_the_learners_numbers_stand_beside_the_engines(page: Page, viewer: Viewer) -> None:
    run = next(run for run in viewer.store.summaries() if run.group == "lisbon weekend")
    made, _ = sequences(viewer.store.trajectory(run.id))
    one = made[0]
    places = [place for place, trained in enumerate(one.trained) if trained]
    numbers = [-0.25 - 0.5 * (number == 1) for number in range(len(places))]
    columns = Columns(
        sequence_key(one),
        0.4,
        little_endian(array("I", places)),
        struct.pack(f"<{len(places)}e", *numbers),
        struct.pack(f"<{len(places)}e", *([1.5] * len(places))),
        bytes([CLIPPED, LEFT_OUT, MASKED, *[0] * (len(places) - 3)]),
    )
    address = f"{viewer.url}/runs/{run.id}/tokens"
    page.goto(address)
    expect(page.locator("#learner")).to_contain_text("is not on this machine")
    [(directory,)] = viewer.store.sql(
        "SELECT p.adapter FROM consumption c JOIN policy_steps p ON p.policy = c.policy AND p.step = c.step "
        f"WHERE c.trajectory_id = '{run.id}'"
    )[1]
    file = Path(directory) / LEARNED_TOKENS
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        file.write_bytes(encode_learned([columns]))
        page.goto(address)
        expect(page.locator("#learner")).to_contain_text(f"Of {len(places)} tokens 1 clipped, 1 masked, 1 left out.")
        first, second, third = (page.locator(f"#t{place}").get_attribute("title") or "" for place in places[:3])
        assert "learner -0.250, ratio 1.500, advantage +0.400, clipped ·" in first
        assert "learner -0.750, ratio 1.500, advantage +0.400, left out: engine and learner too far apart" in second
        assert "learner -0.250" in third
        assert "left out by the importance mask" in third
        assert "clipped" not in third
        page.locator("[data-tokens]").focus()
        for title in (first, second, third):
            page.keyboard.press("ArrowRight")
            expect(page.get_by_role("status").filter(has_text=title)).to_be_visible()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#token-said")).to_contain_text(second)
        page.locator(f"#t{places[0]}").click()
        expect(page.locator("#token-said")).to_contain_text(first)
        page.goto(f"{address}#t{places[2]}")
        page.reload()
        expect(page.locator("#token-said")).to_contain_text(third)
        gaps = [abs(number - (one.logprobs[place] or 0.0)) for number, place in zip(numbers, places, strict=True)]
        engine = one.logprobs[places[gaps.index(max(gaps))]] or 0.0
        expect(page.locator("#farthest tbody tr").first).to_contain_text(f"{engine:.3f}")
    finally:
        file.unlink()
