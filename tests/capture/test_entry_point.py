"""One function has one name, and its runs one group, however the program was started and wherever it lies."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from asks_by_httpx import ASK, CAPTURED
from chat_server import serve

from arttrace.capture.base.entry_point import module_name
from arttrace.records.trajectory import Trajectory
from arttrace.store import open_store
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_key

_AGENT = """
import arttrace

@arttrace.trajectory
def answer(question: str, style: str = "short"):
    return question

if __name__ == "__main__":
    answer("why?")
"""


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "module", "name"),
    [
        (["agent.py"], "agent.py", "agent"),
        (["app/__init__.py", "app/agent.py"], "app/agent.py", "app.agent"),
        (["setup.py", "app/__init__.py", "app/sub/__init__.py", "app/sub/a.py"], "app/sub/a.py", "app.sub.a"),
        (["pyproject.toml", "examples/desk/agent.py"], "examples/desk/agent.py", "examples.desk.agent"),
        (["pyproject.toml", "src/agent.py"], "src/agent.py", "agent"),
        (["setup.py", "services/api/app/__init__.py", "services/api/app/a.py"], "services/api/app/a.py", "app.a"),
        (["app/__init__.py"], "app/__init__.py", "app"),
        (["app/__init__.pyc", "app/agent.pyc"], "app/agent.pyc", "app.agent"),
        (["app/__init__.pyc"], "app/__init__.pyc", "app"),
        (["pyproject.toml", "v/lib/site-packages/agent.py"], "v/lib/site-packages/agent.py", "agent"),
    ],
)
def test_the_name_is_seen_from_the_package_or_the_project(
    tmp_path: Path, files: list[str], module: str, name: str
) -> None:
    _write(tmp_path, dict.fromkeys(files, ""))
    assert module_name(str(tmp_path / module)) == name


def test_a_module_whose_file_is_in_no_folder_is_named_as_it_was_imported(tmp_path: Path) -> None:
    """In an archive of modules, as zipapps and programs that were frozen into one file have them."""
    with zipfile.ZipFile(tmp_path / "program.pyz", "w") as archive:
        archive.writestr("app/__init__.py", "")
        archive.writestr("app/agent.py", _AGENT)
        archive.writestr("__main__.py", "from app import agent\nagent.answer('why?')")
    env = {**os.environ, "ARTTRACE_DIR": str(tmp_path / "data")}
    subprocess.run([sys.executable, str(tmp_path / "program.pyz")], env=env, check=True, timeout=100)
    _write(tmp_path, {"app/__init__.py": "", "app/agent.py": _AGENT})
    program = "from app import agent; agent.answer('why?')"
    subprocess.run([sys.executable, "-c", program], env=env, cwd=tmp_path, check=True, timeout=100)
    with open_store(DataDir(tmp_path / "data")) as store:
        groups = [group_key(run) for run in store.trajectories()]
    assert groups == ['app.agent:answer {"question":"why?","style":"short"}'] * 2


@pytest.mark.parametrize("said", ["__session__", "__vsc_ipynb_file__"])
def test_functions_of_two_notebooks_are_two(said: str, tmp_path: Path) -> None:
    """Stands in for ipykernel, which runs cells so, with the variable that it or VS Code sets."""
    program = r"""
import sys
for notebook in ("desk/plan.ipynb", "/home/me/two words.ipynb", "a-console", 7):
    cells = {"__name__": "__main__", "__session__": "some-id"} | {sys.argv[1]: notebook}
    exec("import arttrace\n@arttrace.trajectory\ndef answer(question): pass\nanswer('why?')", cells)
"""
    data = tmp_path / "data"
    env = {**os.environ, "ARTTRACE_DIR": str(data)}
    subprocess.run([sys.executable, "-c", program, said], env=env, check=True, timeout=100)
    with open_store(DataDir(data)) as store:
        names = {run.entry_name for run in store.trajectories()}
    assert names == {"plan:answer", "two words:answer", "__main__:answer"}


def test_a_script_a_module_an_import_and_another_container_are_one_group(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for container in ("A", "B/deeper"):
        _write(tmp_path / container, {"shop/__init__.py": "", "shop/agent.py": _AGENT})
    a, b = tmp_path / "A", tmp_path / "B" / "deeper"
    code = "import shop.agent; shop.agent.answer(style='short', question='why?')"
    in_package = "import agent; agent.answer('why?')"
    for folder, arguments in (
        (a, ["shop/agent.py"]),
        (a, ["-m", "shop.agent"]),
        (b, [str(b / "shop" / "agent.py")]),
        (b, ["-c", code]),
        (b / "shop", ["-c", in_package]),
    ):
        env = {**os.environ, "ARTTRACE_DIR": str(data)}
        subprocess.run([sys.executable, *arguments], cwd=folder, env=env, check=True, timeout=100)
    with open_store(DataDir(data)) as store:
        runs = store.trajectories()
        summaries = store.summaries()
    assert len(runs) == 5
    assert {run.entry_name for run in runs} == {"shop.agent:answer"}
    assert len({run.entry for run in runs}) > 2
    assert {group_key(run) for run in runs} == {'shop.agent:answer {"question":"why?","style":"short"}'}
    assert {(one.group, one.entry) for one in summaries} == {(group_key(runs[0]), "shop.agent:answer")}


_PROGRAM = f"{ASK}ask('why?')\n"


def test_a_program_is_one_group_as_a_script_and_as_a_module(tmp_path: Path) -> None:
    _write(tmp_path, {"shop/__init__.py": "", "shop/ask.py": _PROGRAM, "shop/__main__.py": _PROGRAM})
    data = tmp_path / "data"
    with serve() as server:
        env = {**os.environ, "ARTTRACE_DIR": str(data), "OPENAI_BASE_URL": server.url, **CAPTURED}
        main = (sys.executable, "-c", "from arttrace.commands import main; main()", "run", "--", sys.executable)
        for started in (["shop/ask.py"], ["-m", "shop.ask"], ["-m", "shop"], ["shop/__main__.py"]):
            subprocess.run([*main, *started], cwd=tmp_path, env=env, check=True, timeout=100)
    with open_store(DataDir(data)) as store:
        groups = [group_key(run) for run in store.trajectories()]
    assert groups == ['shop.ask {"argv":[]}'] * 2 + ['shop {"argv":[]}'] * 2


def test_an_object_counts_by_its_type(tmp_path: Path) -> None:
    def key(session: str) -> str:
        arguments = {"question": "why?", "state": [session, {"at": session}]}
        return group_key(Trajectory(id="id", revision="r", entry_name="shop:answer", arguments=arguments))

    assert key("<shop.Session object at 0x7f11>") == key("<shop.Session object at 0x7f22>")
    assert key("<shop.Session object at 0x7f11>") != key("<shop.Other object at 0x7f11>")
    assert key("meet at 0x7f11>") != key("meet at 0x7f22>")


@pytest.mark.parametrize("mode", ["off", "redacted"])
def test_runs_whose_arguments_were_not_kept_are_not_compared(tmp_path: Path, mode: str) -> None:
    _write(
        tmp_path, {"agent.py": _AGENT.replace('answer("why?")', "[answer(question) for question in ('why', 'how')]")}
    )
    data = tmp_path / "data"
    env = {**os.environ, "ARTTRACE_DIR": str(data), "ARTTRACE_CAPTURE_CONTENT": mode}
    subprocess.run([sys.executable, "agent.py"], cwd=tmp_path, env=env, check=True, timeout=100)
    with open_store(DataDir(data)) as store:
        assert [one.group == one.id for one in store.summaries()] == [True, True]
