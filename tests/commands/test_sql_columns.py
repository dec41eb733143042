"""The columns of a query in JSON."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from simulated_agent import research_run

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.system.paths import DataDir


def test_columns_of_one_name_are_all_in_the_json_of_a_query(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("run"))
    query = "SELECT a.id, b.id, 1 AS id_1, 2 AS n FROM trajectories a JOIN trajectories b ON b.id = a.id"
    done = CliRunner().invoke(cli, ["sql", "--dir", str(tmp_path), "--json", query])
    [row] = json.loads(done.output)
    assert list(row.items()) == [("id", "run"), ("id_2", "run"), ("id_1", 1), ("n", 2)]


def test_a_decimal_is_a_number(tmp_path: Path) -> None:
    """DuckDB takes `0.1` for one."""
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("run"))
    query = ["sql", "--dir", str(tmp_path), "SELECT 0.1 AS share, 12.50 AS price UNION ALL SELECT 10.25, 1 ORDER BY 1"]
    rows = json.loads(CliRunner().invoke(cli, [*query, "--json"]).output)
    assert rows == [{"share": 0.1, "price": 12.5}, {"share": 10.25, "price": 1}]
    [_, _, first, second, _] = CliRunner().invoke(cli, query).output.splitlines()
    assert (first.rstrip(), second.rstrip()) == (" 0.10   12.50", "10.25    1.00")


def test_a_map_by_decimals_is_json(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("run"))
    query = "SELECT map([1.5, 2], [[map([0.1], ['a'])], []]) AS m, map([1], [2]) AS n"
    done = CliRunner().invoke(cli, ["sql", "--dir", str(tmp_path), "--json", query])
    assert json.loads(done.output) == [{"m": {"1.5": [{"0.1": "a"}], "2.0": []}, "n": {"1": 2}}]


def test_a_plan_is_drawn_as_duckdb_draws_it(tmp_path: Path) -> None:
    """It was put into one line, and cut."""
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("run"))
    args = ["sql", "--dir", str(tmp_path), "EXPLAIN SELECT count(*) FROM spans"]
    [row] = json.loads(CliRunner().invoke(cli, [*args, "--json"]).output)
    drawn = row["explain_value"].splitlines()
    assert len(drawn) > 5
    assert CliRunner().invoke(cli, args).output.splitlines() == [line.rstrip() for line in drawn]
    args[-1] = "EXPLAIN ANALYZE SELECT count(*) FROM spans"  # its times are others each time
    assert len(CliRunner().invoke(cli, args).output.splitlines()) > 5
