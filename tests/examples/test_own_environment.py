"""The examples whose framework asks for packages that conflict with ours, each in an environment of its own.
tests/e2e/test_examples.py takes a step with each under the server that all examples share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from example_modules import EXAMPLES, OWN_ENVIRONMENT, load
from own_environment import environment


def test_what_things_cost_is_known_by_their_names() -> None:
    prices = load("frameworks/llamaindex/prices.py")
    assert [prices.price(item) for item in ("lamp", "sofa", "elephant")] == [60, 70, 0]
    assert [prices.discount(customer) for customer in ("Ann", "Nobody")] == [9, 0]
    assert all(prices.price(item) > prices.discount(who) > 0 for item in prices.ITEMS for who in prices.CUSTOMERS)


@pytest.mark.parametrize("example", sorted(OWN_ENVIRONMENT))
def test_no_agent_knows_of_arttrace(example: str) -> None:
    assert "import arttrace" not in (EXAMPLES / example / "agent.py").read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.parametrize("example", sorted(OWN_ENVIRONMENT))
def test_the_command_of_its_readme_makes_steps_on_a_cpu(example: str, tmp_path: Path) -> None:
    """With a vLLM and a tiny model of its own."""
    python = environment(example, tmp_path / "environment")
    command = [str(python), str(EXAMPLES / "train.py"), example, "--tiny", "--steps", "2", "--groups", "4"]
    command += ["--tiny-games", "160", "--tiny-steps", "300", "--attempts", "4", "--dir", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "policy@1: reward " in done.stdout, done.stdout
