"""How vLLM finds our plugin: what an installed package says, for one that lies in the tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

Groups = Mapping[str, Mapping[str, str]]


def of_weightwire() -> Groups:
    """As pyproject.toml has them. (Python 3.10 cannot read TOML.)"""
    text = (ROOT / "pyproject.toml").read_text()
    tables = re.findall(r'^\[project\.entry-points\."([\w.]+)"\]\n((?:\w+ = ".*"\n)+)', text, re.MULTILINE)
    return {group: dict(re.findall(r'(\w+) = "(.*)"', lines)) for group, lines in tables}


def install(path: Path, name: str, groups: Groups) -> None:
    """Makes a folder of the import path look as if the package was installed there."""
    folder = path / f"{name.replace('-', '_')}-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    (folder / "entry_points.txt").write_text("\n".join(lines))
