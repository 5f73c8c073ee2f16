"""The Python examples in README and docs run as they are written, in order, unless they need a cloud account."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEEDS_MORE = re.compile(r"s3://|hf://")


def examples(page):
    return [block for block in BLOCK.findall(page.read_text()) if not NEEDS_MORE.search(block)]


PAGES = [page for page in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]) if examples(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_run(page, tmp_path):
    code = "\n".join(examples(page))
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_there_are_examples_that_run():
    assert len(PAGES) >= 2


def test_links_between_the_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
