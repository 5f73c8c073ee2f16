"""src/log, src/publish and src/follow have no thread, lock, sleep or clock of their own.

They are step functions over what is passed to them (a store, a Clock, a Random, a file system), so that a simulator
can run that very code, crash it anywhere, and get the same run from the same seed. Threads live elsewhere.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("log", "publish", "follow")

FORBIDDEN = {
    "a header for threads or waiting": r"#\s*include\s+<(thread|mutex|shared_mutex|condition_variable|future|semaphore"
    r"|latch|barrier|stop_token|pthread\.h|semaphore\.h)>",
    "a header for clocks": r"#\s*include\s+<(ctime|time\.h|sys/time\.h)>",
    "a thread": r"\bstd\s*::\s*(jthread|thread|async|this_thread)\b|\bpthread_\w+",
    "a lock or something to wait on": r"\bstd\s*::\s*(\w*mutex|lock_guard|unique_lock|scoped_lock|shared_lock"
    r"|condition_variable\w*|counting_semaphore|binary_semaphore|latch|barrier|promise|future|call_once)\b",
    "a sleep": r"\b(sleep|usleep|nanosleep|clock_nanosleep|sleep_for|sleep_until|poll|ppoll|select)\s*\(",
    "a clock": r"\b(system|steady|high_resolution|utc|file)_clock\b|\bSystem(Clock|Sleeper|Random)\b",
    "a time call": r"(?<![\w.>])(std\s*::\s*|::\s*)?(time|clock|gettimeofday|clock_gettime|localtime|gmtime)\s*\(",
    "a random source": r"\bstd\s*::\s*(random_device|mt19937\w*)\b|\bs?rand\s*\(|\bgetrandom\s*\(",
}
PATTERNS = {what: re.compile(pattern) for what, pattern in FORBIDDEN.items()}
# Comments and texts may speak of time.
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def complaints_about(code: str) -> list[tuple[int, str]]:
    """The lines that break the rule, and by what."""
    bare = NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), code)
    return [
        (number, what)
        for number, line in enumerate(bare.splitlines(), 1)
        for what, pattern in PATTERNS.items()
        if pattern.search(line)
    ]


def complaints() -> list[str]:
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / "src" / folder).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            for number, what in complaints_about(path.read_text()):
                found.append(f"{path.relative_to(ROOT)}:{number}: {what}, which src/{folder} must be given instead")
    return found


if __name__ == "__main__":
    for line in (lines := complaints()):
        print(line)
    sys.exit(1 if lines else 0)
