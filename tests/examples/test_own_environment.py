"""The examples whose framework asks for packages that conflict with ours: each in an environment of its own, which has
arttrace and its trainer from this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from example_modules import EXAMPLES, OWN_ENVIRONMENT, load


def environment(example: str, folder: Path) -> Path:
    """The Python of a new environment with what the example's README installs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    [packages] = re.findall(r"\$ pip install (.+)", (EXAMPLES / example / "README.md").read_text(encoding="utf-8"))
    show = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip())
    (site / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n{EXAMPLES.parent}\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages.split()], check=True, timeout=1500)
    return python


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
def test_the_example_makes_a_step_on_a_cpu(example: str, tmp_path: Path) -> None:
    """With a real vLLM and a tiny model, by the command of its README."""
    python = environment(example, tmp_path / "environment")
    command = [str(python), str(EXAMPLES / "train.py"), example, "--tiny", "--steps", "2", "--groups", "4"]
    command += ["--tiny-games", "160", "--tiny-steps", "300", "--attempts", "4", "--dir", str(tmp_path / "data")]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "policy@1: reward " in done.stdout, done.stdout
