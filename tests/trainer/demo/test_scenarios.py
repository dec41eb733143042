"""Scenarios: held-out pairs never come up in training, kinds are balanced, and truth follows the right services."""

from collections import Counter
from pathlib import Path

import pytest

from arttrace.system.errors import ArttraceError
from trainer.demo.scenarios import draw, is_held_out, load_world, truth


def pair(scenario):
    return frozenset(scenario.question.split(" and "))


def test_held_out_and_training_share_no_pair_of_items(world):
    training = {pair(s) for s in draw(world, 1000, "a", held_out=False)}
    held = {pair(s) for s in draw(world, 1000, "b", held_out=True)}
    assert not training & held
    assert all(is_held_out(sorted(items)) for items in held)


def test_draws_repeat_by_seed_and_differ_between_seeds(world):
    assert draw(world, 30, "1", held_out=True) == draw(world, 30, "1", held_out=True)
    assert draw(world, 30, "1", held_out=True) != draw(world, 30, "2", held_out=True)


def test_every_pair_of_kinds_comes_up_equally_often(world):
    counts = Counter(
        frozenset(item.split(" ")[0] for item in s.question.split(" and ")) for s in draw(world, 60, "1", held_out=True)
    )
    assert len(counts) == 15
    assert set(counts.values()) == {4}


def test_no_step_lacks_a_kind_where_scenarios_are_drawn_evenly(world):
    drawn = draw(world, 150, "1", held_out=False, evenly=True)
    kinds = [{item.split(" ")[0] for item in s.question.split(" and ")} for s in drawn]
    assert all(len(set().union(*kinds[n : n + 3])) == 6 for n in range(0, 150, 3))
    assert set(Counter(map(frozenset, kinds)).values()) == {10}


def test_truth_is_what_the_right_services_quote(world):
    for scenario in draw(world, 50, "1", held_out=False):
        shown = []
        for item in scenario.question.split(" and "):
            service = world.SERVICE_OF_KIND[item.split(" ")[0]]
            word, price, state = world.quote(service, item, scenario.day).split(" ")
            assert (word, state) == ("price", "valid")
            shown.append(f"{item} {price}")
        assert truth(world, scenario) == " and ".join(shown)


def test_the_wrong_service_never_quotes_the_valid_price(world):
    wrong = {"live_price": "list_price", "list_price": "live_price"}
    for kind, service in world.SERVICE_OF_KIND.items():
        for day in range(200):
            quoted = world.quote(wrong[service], f"{kind} apple", day).split(" ")
            assert quoted[2] == "expired"
            assert int(quoted[1]) != world.price(f"{kind} apple", day)


@pytest.mark.parametrize(
    ("service", "item"), [("list_price", "apple"), ("list_price", "odd apple"), ("buy", "fresh fig")]
)
def test_what_makes_no_sense_is_unknown(world, service, item):
    assert world.quote(service, item, 1) == "unknown"


def test_a_missing_example_is_shown_with_its_hint():
    with pytest.raises(ArttraceError, match="clone"):
        load_world(Path("/nowhere"))
