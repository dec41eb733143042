"""An environment of its own for an example whose framework asks for packages that conflict with ours."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from example_modules import EXAMPLES


def environment(example: str, folder: Path) -> Path:
    """The Python of a new environment in `folder`, with what the example's README installs before what this one has:
    pip installs only what differs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    show = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip())
    (site / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n{EXAMPLES.parent}\n")
    [packages] = re.findall(r"\$ pip install (.+)", (EXAMPLES / example / "README.md").read_text(encoding="utf-8"))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", *packages.split()]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=600)
    assert installed.returncode == 0, installed.stderr[-4000:]
    return python
