"""Every quoted include in src/ names its folder ("folder/file.h") and looks downwards only.

The build enforces the same for what it compiles; this also covers headers nobody includes yet, and includes
relative to the including file ("file.h"), which the compiler would accept.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYER = re.compile(r"weightwire_layer\(NAME (\w+)(?: DEPENDS ([\w ]+?))?(?: LIBS [^)]*)?\)")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def visible_folders() -> dict[str, set[str]]:
    visible: dict[str, set[str]] = {}
    for name, depends in LAYER.findall((ROOT / "CMakeLists.txt").read_text()):
        visible[name] = {name}.union(*(visible[below] for below in depends.split()))
    return visible


def complaints() -> list[str]:
    visible = visible_folders()
    found = []
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        folder = path.relative_to(ROOT / "src").parts[0]
        if folder not in visible:
            found.append(f"{path.relative_to(ROOT)}: src/{folder} is not a layer of CMakeLists.txt")
            continue
        for include in INCLUDE.findall(path.read_text()):
            if include.partition("/")[0] not in visible[folder]:
                found.append(f'{path.relative_to(ROOT)}: src/{folder} may not include "{include}"')
    return found


if __name__ == "__main__":
    for line in (lines := complaints()):
        print(line)
    sys.exit(1 if lines else 0)
