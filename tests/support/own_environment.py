"""Environments of their own for packages that we do not have, or that conflict with ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from example_modules import EXAMPLES


def own_packages() -> str:
    """The folders of this one's packages, a line each, as another's .pth file names them: also those that a .pth file
    of this one names, since none is read from there."""
    return "".join(f"{path}\n" for path in sys.path if path.endswith("site-packages"))


def environment(example: str, folder: Path) -> Path:
    """The Python of a new environment in `folder`, with what the example's README installs before what this one has:
    pip installs only what differs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    show = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip())
    (site / "shared.pth").write_text(f"{own_packages()}{EXAMPLES.parent}\n")
    [packages] = re.findall(r"\$ pip install (.+)", (EXAMPLES / example / "README.md").read_text(encoding="utf-8"))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", *packages.split()]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=600)
    assert installed.returncode == 0, installed.stderr[-4000:]
    return python


def kept_in(folder: Path) -> Path:
    """Where TEST_ENVIRONMENTS keeps environments from one run of the tests to the next, else `folder`."""
    return Path(os.environ.get("TEST_ENVIRONMENTS") or folder)


def kept_environment(name: str, package: str, tmp_path: Path) -> Path:
    """An environment with a package, kept where TEST_ENVIRONMENTS says, else in `tmp_path`."""
    environment = kept_in(tmp_path) / name
    python = environment / "bin" / "python"
    if not (environment / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True, timeout=300)
        subprocess.run([str(python), "-m", "pip", "install", "-q", package], check=True, timeout=900)
        (environment / "made").touch()
    return environment
