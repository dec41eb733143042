"""The openai package's own tests, with arttrace off and on: every test must end the same way.

    python benchmarks/openai_suite/run.py openai-2.54.0.tar.gz openai-3.51.0.tar.gz

Give source distributions, which hold the tests (`pip download --no-binary openai --no-deps openai==3.51.0`). For each,
that release and what its tests need are installed into a virtual environment that sees this interpreter's packages.
Its client, streaming and response tests, and those of its chat, streaming, responses and Azure helpers, run twice, the
second time under `arttrace run`, so that every model call they make is recorded. Not run are its route tests
(tests/api_resources): they need a mock server made from an OpenAPI file that is not in the distribution. Where the two
runs differ a third, without arttrace, tells whether the test itself changes its mind.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from arttrace.journal import list_segments, read_segment
from arttrace.paths import DataDir

NEEDED = (
    "pytest==9.2.0",
    "pytest-asyncio==1.5.0",
    "iniconfig==2.3.1",
    "pluggy==1.7.0",
    "pytest-timeout==2.4.0",
    "inline-snapshot",
    "executing",
    "asttokens",
    "dirty-equals",
    "respx",
    "time-machine",
    "nest-asyncio",
    "trio",
    "outcome",
    "sortedcontainers",
    "websockets",
)
TESTS = (
    "tests/test_client.py",
    "tests/test_streaming.py",
    "tests/test_response.py",
    "tests/test_legacy_response.py",
    "tests/test_module_client.py",
    "tests/lib/chat",
    "tests/lib/streaming",
    "tests/lib/responses",
    "tests/lib/test_azure.py",
)
Outcomes = dict[str, str]


def pinned(packages: tuple[str, ...], source: Path) -> list[str]:
    """The packages in the versions that the distribution's own locks name, where they do."""
    locks = "".join(
        lock.read_text() for lock in (source / "uv.lock", source / "requirements-dev.lock") if lock.exists()
    )
    found = {name: re.search(rf'^(?:name = "{name}"\nversion = "|{name}==)([\w.]+)', locks, re.M) for name in packages}
    return [f"{name}=={match[1]}" if match else name for name, match in found.items()]


def environment(directory: Path, release: str, source: Path) -> str:
    """A virtual environment with that release of openai and what its tests need; its interpreter."""
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    ours = [sysconfig.get_path("purelib"), str(Path(__file__).parents[2])]
    Path(site, "arttrace.pth").write_text("\n".join(ours) + "\n")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site]
    subprocess.run([*install, f"openai=={release}", *pinned(NEEDED, source)], check=True, stderr=subprocess.DEVNULL)
    return str(python)


def outcomes(command: list[str], source: Path, report: Path) -> Outcomes:
    """How each test of a run ended: passed, failed, error or skipped."""
    tests = [test for test in TESTS if (source / test).exists()]
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:logfire", "--timeout=120", "-o", "addopts="]
    arguments = [*command, "-m", "pytest", *tests, *options, f"--junitxml={report}"]
    with report.with_suffix(".log").open("w") as log:
        subprocess.run(arguments, cwd=source, stdout=log, stderr=log, check=False)
    if not report.exists():
        raise SystemExit(f"the tests did not run: {report.with_suffix('.log').read_text()[-2000:]}")
    found: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}::{case.get('name')}"] = next(iter(sorted(kinds)), "passed")
    return found


def compare(sdist: Path, directory: Path) -> bool:
    """Run one release's tests off, on and off; print the counts and every difference; whether there was none."""
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (source,) = (path for path in directory.iterdir() if path.is_dir())
    release = source.name.removeprefix("openai-")
    python = environment(directory / "venv", release, source)
    data = directory / "data"
    on = [python, "-c", "from arttrace.commands import main; main()", "run", "--dir", str(data), "--", python]
    off = outcomes([python], source, directory / "off.xml")
    captured = outcomes(on, source, directory / "on.xml")
    changed = {name for name in off.keys() | captured.keys() if off.get(name) != captured.get(name)}
    again = outcomes([python], source, directory / "again.xml") if changed else off
    spans = sum(1 for segment in list_segments(DataDir(data).spool) for _ in read_segment(segment.path))
    print(f"openai {release}")
    print(f"  off  {_counts(off)}")
    print(f"  on   {_counts(captured)}, {spans} records captured")
    for name in sorted(changed):
        own = "" if off.get(name) == again.get(name) else f" (off again: {again.get(name)})"
        print(f"  {name}: off {off.get(name)}, on {captured.get(name)}{own}")
    return all(off.get(name) != again.get(name) for name in changed)


def _counts(found: Outcomes) -> str:
    counts = Counter(found.values())
    return ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failure", "error", "skipped"))


def main() -> None:
    """Compare every release given; exit 1 when one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", nargs="+", type=Path, help="source distribution of openai")
    same = True
    for sdist in parser.parse_args().sdist:
        with tempfile.TemporaryDirectory(prefix="arttrace-openai-") as directory:
            same &= compare(sdist.resolve(), Path(directory))
    print("the same with arttrace on and off" if same else "NOT the same with arttrace on and off")
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
