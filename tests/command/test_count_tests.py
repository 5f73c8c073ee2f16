"""A test run is only as good as its count: nothing that went wrong may look like success."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "tools/count_tests.py"

GTEST = """<testsuites><testsuite>
<testcase name="a" status="run" result="completed"/>
<testcase name="b" status="run" result="completed"><failure/><failure/></testcase>
<testcase name="c" status="run" result="skipped"><skipped/></testcase>
<testcase name="d" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
PYTEST = (
    """<testsuites><testsuite><testcase name="a"/><testcase name="b"><error/></testcase></testsuite></testsuites>"""
)
PASSING = """<testsuites><testsuite><testcase name="a"/></testsuite></testsuites>"""


@pytest.mark.parametrize(
    "files, expected, status",
    [
        ({"build.status": "0"}, "1 passed, 0 failed, 0 skipped", 0),
        ({"build.status": "2"}, "0 passed, 1 failed, 0 skipped", 1),
        ({"g.status": "1", "g.xml": GTEST, "p.status": "1", "p.xml": PYTEST}, "2 passed, 2 failed, 2 skipped", 1),
        ({"crashed.status": "134", "fine.status": "0"}, "1 passed, 1 failed, 0 skipped", 1),
        ({"leaked.status": "23", "leaked.xml": PASSING}, "1 passed, 1 failed, 0 skipped", 1),
        ({"cut.status": "0", "cut.xml": PASSING[:20]}, "0 passed, 1 failed, 0 skipped", 1),
        ({}, "0 passed, 0 failed, 0 skipped", 1),
    ],
)
def test_count(tmp_path, files, expected, status):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    result = subprocess.run([sys.executable, PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    assert result.stdout.splitlines()[-1] == expected
    assert result.returncode == status
