"""Sums up a test run: `count_tests.py DIRECTORY` prints `N passed, N failed, N skipped` as its last line.

The directory holds, for every step NAME that ran, NAME.status (its exit status) and, where the step is a test program,
NAME.xml (JUnit XML, as gtest and pytest write it). A step with XML counts its test cases, one without counts as one.
A step that ended badly without any failed case (a crash, a leak found at exit) counts as one failure more.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") == "notrun":
        return "skipped"
    return "passed"


def count_step(status_file: Path) -> Counter:
    ended_well = int(status_file.read_text()) == 0
    xml_file = status_file.with_suffix(".xml")
    if not xml_file.exists():
        return Counter(["passed" if ended_well else "failed"])
    try:
        counts = Counter(outcome(case) for case in ElementTree.parse(xml_file).iter("testcase"))
    except ElementTree.ParseError:
        counts, ended_well = Counter(), False
    if not ended_well and not counts["failed"]:
        counts["failed"] += 1
    return counts


def main() -> int:
    total = Counter()
    for status_file in sorted(Path(sys.argv[1]).glob("*.status")):
        total += count_step(status_file)
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
