"""The tables in ARCHITECTURE.md, "Timeouts, retries and limits", say what the code does.

The reactions are compared with ReactionTo in src/base/failure_policy.h, and each value with the constant that its row
names. No constant of a src/*/policy.h, or of python/weightwire/_policy.py, may be missing.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTION = "Timeouts, retries and limits"
REACTIONS = {
    "kRetrySoon": "retry soon",
    "kRetrySlowly": "retry slowly",
    "kFetchAgain": "fetch again",
    "kGiveUp": "give up",
}
PYTHON_POLICY = "python/weightwire/_policy.py"
UNITS = {"milliseconds": "ms", "seconds": "s", "minutes": "min", "hours": "h"}

CONSTANT = re.compile(r"inline\s+constexpr\s+([\w:]+)\s+(k\w+)\s*(?:=\s*([^;{]+?(?:\{[^}]*\}[^;]*)?)|\{([^}]*)\})\s*;")
SHIFT = re.compile(r"std::(?:uint64_t|size_t)\{(\d+)\} << (\d+)")
PYTHON = re.compile(r"^\s*(\w+)(?:: \w+)? = ([\d.]+)", re.MULTILINE)


def size(count: int) -> str:
    """16 << 20 is "16 MiB"."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count:,}"


def constants_of(source: str) -> dict[str, str]:
    """Each named constant of a file, as the table writes its value."""
    values = {}
    for kind, name, expression, braced in CONSTANT.findall(source):
        text = (braced or expression).replace("'", "").strip()
        unit = UNITS.get(kind.removeprefix("std::chrono::"))
        shift = SHIFT.fullmatch(text)
        if unit is not None:
            values[name] = f"{int(text):,} {unit}"
        elif shift:
            values[name] = size(int(shift[1]) << int(shift[2]))
        elif re.fullmatch(r"\d+", text):
            values[name] = f"{int(text):,} s" if name.endswith("Seconds") else f"{int(text):,}"
    return values


def python_values_of(source: str) -> dict[str, str]:
    return {
        name: f"{float(value) * 1000:g} ms" if float(value) < 1 else f"{float(value):g} s"
        for name, value in PYTHON.findall(source)
    }


def rows_of(page: str) -> list[list[str]]:
    """The rows of the section's tables, without heads."""
    section = re.search(rf"^## {SECTION}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    if section is None:
        return []
    lines = [line for line in section[1].splitlines() if line.startswith("|") and not re.fullmatch(r"[|\-: ]+", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def complaints_about_reactions(rows: list[list[str]], source: str) -> list[str]:
    said = {code: row[1] for row in rows for code in re.findall(r"`(k\w+)`", row[0]) if row[1] in REACTIONS.values()}
    function = source[source.index("constexpr Reaction ReactionTo") :]
    function = function[: function.index("\n}")]
    true, waiting = {}, []
    for code, reaction in re.findall(r"case ErrorCode::(k\w+):|return Reaction::(k\w+);", function):
        if code:
            waiting.append(code)
        true.update({each: REACTIONS[reaction] for each in waiting} if reaction else {})
        waiting = waiting if code else []
    return [
        f"{code}: the table says '{said.get(code)}', ReactionTo says '{true.get(code)}'"
        for code in sorted({*said, *true})
        if said.get(code) != true.get(code)
    ]


def complaints_about_values(rows: list[list[str]], sources: dict[str, str]) -> list[str]:
    complaints, named = [], set()
    for row in rows:
        home = re.fullmatch(r"`([\w./]+): (\w+)`", row[-1])
        if home is None:
            continue
        path, name = home.groups()
        source = sources.get(path)
        if source is None:
            complaints.append(f"{path} does not exist")
            continue
        values = python_values_of(source) if path.endswith(".py") else constants_of(source)
        named.add((path, name))
        if name not in values:
            complaints.append(f"{path} has no constant {name} that can be compared")
        elif values[name] != row[-2]:
            complaints.append(f"{path}: {name} is {values[name]}, the table says {row[-2]}")
    for path, source in sources.items():
        if re.fullmatch(r"src/\w+/policy\.h", path):
            names = re.findall(r"inline\s+constexpr\s+[\w:]+\s+(k\w+)", source)
        else:
            names = python_values_of(source) if path == PYTHON_POLICY else ()
        complaints += [f"{path}: {name} is in no table" for name in names if (path, name) not in named]
    return complaints


def main() -> int:
    rows = rows_of((ROOT / "ARCHITECTURE.md").read_text())
    paths = {match[1] for row in rows if (match := re.fullmatch(r"`([\w./]+): \w+`", row[-1]))}
    paths |= {str(path.relative_to(ROOT)) for path in ROOT.glob("src/*/policy.h")}
    paths.add(PYTHON_POLICY)
    sources = {path: (ROOT / path).read_text() for path in sorted(paths) if (ROOT / path).exists()}
    complaints = complaints_about_reactions(rows, (ROOT / "src/base/failure_policy.h").read_text())
    complaints += complaints_about_values(rows, sources)
    for complaint in complaints:
        print(f"ARCHITECTURE.md, {SECTION}: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
