"""docs/vllm.md has the variables, metrics and status fields of the tables and the code."""

import re
from pathlib import Path

from weightwire import _core
from weightwire.integrations import _routes
from weightwire.integrations._engine_status import EngineStatus
from weightwire.integrations._settings import engine_settings

PAGE = (Path(__file__).resolve().parents[2] / "docs/vllm.md").read_text()


def rows_of(section):
    """The cells of a section's tables, without their heads."""
    text = re.search(rf"^## {section}$(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)[1]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_variables_and_their_defaults():
    documented = {name.strip("`"): default.strip("`") for name, _, default in rows_of("Options")}
    assert documented == {row["environment"]: row["default"] for row in engine_settings()}


def test_no_other_variable_is_named():
    known = {row["environment"] for row in _core.settings()} | set(_core.other_variables())
    assert set(re.findall(r"WEIGHTWIRE_[A-Z_]+", PAGE)) <= known


def test_metrics_with_their_types_and_labels():
    documented = {cells[0].strip("`"): cells[1] for cells in rows_of("Metrics")}
    expected = {}
    for row in _core.metrics():
        labels = "{" + ",".join(row["labels"]) + "}" if row["labels"] else ""
        expected[row["name"] + labels] = row["type"]
    assert documented == expected


def test_routes_and_status_fields():
    cells = [cell for row in rows_of("Routes") for cell in re.findall(r"`([^`]+)`", row[0])]
    routes = {f"{method} {path}" for path, method in _routes.METHODS.items()}
    assert routes <= set(cells)
    assert [cell for cell in cells if cell not in routes] == [*EngineStatus("run", None, None, "weightwire").fields]
