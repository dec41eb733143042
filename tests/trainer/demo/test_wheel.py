"""What the demo needs beside its modules comes with the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "arttrace", "trainer", "examples")
SHOW = """
from trainer.demo import recipe, scenarios
scenarios.load_world()
recipe.base_model_path(1)
print(scenarios.__file__, recipe.AGENT, sep="\\n")
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_wheel_has_the_demo_s_agent(tmp_path: Path) -> None:
    source, environment = tmp_path / "source", tmp_path / "environment"
    source.mkdir()
    for name in BUILT_FROM:
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy2
        copy(REPOSITORY / name, source / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source, cwd=tmp_path)
    shutil.rmtree(source)
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    (wheel,) = tmp_path.glob("arttrace-*.whl")
    python = environment / "bin" / "python"
    run(*pip, "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # behind the wheel
    module, agent = map(Path, run(python, "-I", "-c", SHOW, cwd=tmp_path).split())
    assert module.is_relative_to(environment)
    assert agent.is_relative_to(environment)
    assert agent.read_bytes() == (REPOSITORY / "examples" / "market" / "agent.py").read_bytes()
