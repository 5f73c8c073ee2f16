"""Every quoted include in src/ names its folder ("folder/file.h") and looks downwards only.

The build enforces this between folders. This check also covers headers that no source includes, includes relative to
the including file ("file.h"), which the compiler would accept, and the order of the sub-folders below.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYER = re.compile(r"weightwire_layer\(NAME (\w+)(?: DEPENDS ([\w ]+?))?(?: LIBS [^)]*)?\)")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

# Sub-folders, from the bottom up: a file may include files of its own sub-folder and of those before it in its list.
# Files directly in the folder are either used by all sub-folders (store.h) or use them (open.h), so they are exempt.
SUB_FOLDERS = {
    "codec": ["format", "kernels", "digest", "encode", "decode"],
    "store": ["http", "credentials", "backends", "wrappers"],
    "follow": ["targets", "in_place", "mirror"],
    "cli": ["commands"],
}


def looks_upwards(path: Path, include: str) -> bool:
    """Whether a file of a sub-folder includes one of a sub-folder above its own."""
    folder, *below = path.relative_to(ROOT / "src").parts
    other, *other_below = include.split("/")
    if other != folder or len(below) < 2 or len(other_below) < 2:
        return False
    order = SUB_FOLDERS[folder]
    return order.index(other_below[0]) > order.index(below[0])


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
            elif looks_upwards(path, include):
                found.append(f'{path.relative_to(ROOT)}: may not include "{include}", which is in a sub-folder above')
    return found


if __name__ == "__main__":
    for line in (lines := complaints()):
        print(line)
    sys.exit(1 if lines else 0)
