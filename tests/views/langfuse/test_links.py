"""Where a run is seen in Langfuse: printed by a push, kept, and shown with the run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
from click.testing import CliRunner, Result
from langfuse_server import LangfuseServer, langfuse_server
from simulated_agent import research_run

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.langfuse.state import links


def arttrace(server: LangfuseServer, data: DataDir, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--dir", str(data.root)], env=server.environ(), catch_exceptions=False)


def test_a_push_prints_the_page_and_show_has_it(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append([*research_run("one", "s"), *research_run("two", "t")])
        traces = {span.attributes["arttrace.trajectory.id"]: span.trace_id for span in research_run("one", "s")}
    assert links(data, "one") == []
    with langfuse_server() as server:
        pages = f"{server.url}/project/cmproject1/traces"
        said = arttrace(server, data, "langfuse", "push")
        assert said.output.splitlines()[-1] == pages
        rates = re.findall(r"2 of 2 runs, (\S+) (per second|s each)", said.stderr)
        assert rates, said.stderr
        assert rates[0][1] == "s each" or float(rates[0][0]) < 10_000, "timed from its end on, it was millions a second"
        page = f"{pages}/{traces['one']}"
        assert links(data, "one") == [page]
        assert links(data, "on") == []
        shown = arttrace(server, data, "show", "one")
        assert f"langfuse    {page}" in shown.output.replace("\n            ", "")
        assert json.loads(arttrace(server, data, "show", "one", "--json").output)["links"] == [page]
        again = json.loads(arttrace(server, data, "langfuse", "push", "--entry", "nothing", "--json").output)
        assert again["url"] == pages


def test_a_damaged_line_costs_its_own_run_alone_and_is_counted(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append([*research_run("one", "s"), *research_run("two", "t")])
    with langfuse_server() as server:
        arttrace(server, data, "langfuse", "push")
        pages = [links(data, run) for run in ("one", "two")]
        assert all(len(page) == 1 for page in pages)
        [file] = (data.root / "langfuse").glob("sent-*.jsonl")
        kept = file.read_bytes()
        file.write_bytes(b'{"id":"one","spans":7}\n{"id":"one","spa\n\xff{"id":"one"}\n' + kept + b'{"id":"one"')
        assert [links(data, run) for run in ("one", "two")] == pages
        said = arttrace(server, data, "langfuse", "push")
        assert "4 lines of what was sent before cannot be read" in said.stderr
        assert json.loads(arttrace(server, data, "langfuse", "push", "--json").stdout)["unreadable"] == 4
        assert [links(data, run) for run in ("one", "two")] == pages


def test_a_run_in_somebody_elses_trace_is_its_observation(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    *below, root = research_run("one", "s")
    with Store.open(data, create=True) as store:
        store.append([*below, msgspec.structs.replace(root, parent_span_id="f" * 16)])
    with langfuse_server() as server:
        said = arttrace(server, data, "langfuse", "push").output.splitlines()
        assert said[-1] == f"{server.url}/project/cmproject1/traces/{root.trace_id}?observation={root.span_id}"


def test_a_server_that_does_not_name_its_project_gives_no_page(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append(research_run("one", "s"))
    with langfuse_server(project="<script>") as server:
        said = arttrace(server, data, "langfuse", "push").output
        assert "/project/" not in said
    assert links(data, "one") == []


def test_a_run_is_found_whatever_its_name_and_a_damaged_project_is_none(tmp_path: Path) -> None:
    data, name = DataDir(tmp_path / "data"), 'a "quoted" \\ näme'
    with Store.open(data, create=True) as store:
        store.append(research_run(name, "s"))
    with langfuse_server() as server:
        arttrace(server, data, "langfuse", "push")
    assert len(links(data, name)) == 1
    [project] = (data.root / "langfuse").glob("project-*.json")
    project.write_bytes(b'{"url":"\xff","id":"p"}')
    assert links(data, name) == []
