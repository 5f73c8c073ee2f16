"""The exit statuses of commands, as the program itself says them (src/runner/error_kinds.h)."""

import json
import os
import subprocess
from pathlib import Path

_PROGRAM = os.environ.get("WEIGHTWIRE", str(Path(__file__).resolve().parents[2] / "build/weightwire"))
_HELP = json.loads(subprocess.run([_PROGRAM, "help", "--json"], capture_output=True, check=True).stdout)
STATUS_OF = {error["code"]: error["exit_code"] for error in _HELP["errors"]}

UNEXPECTED = STATUS_OF["unexpected"]
INVALID_ARGUMENT = STATUS_OF["invalid_argument"]
NOT_FOUND = STATUS_OF["not_found"]
LOCAL_IO = STATUS_OF["local_io"]
CORRUPT = STATUS_OF["corrupt"]
MISMATCH = STATUS_OF["mismatch"]
UNSUPPORTED = STATUS_OF["unsupported"]
CONFLICT = STATUS_OF["conflict"]
PERMISSION_DENIED = STATUS_OF["permission_denied"]
UNAVAILABLE = STATUS_OF["unavailable"]
WAIT_TIMEOUT = STATUS_OF["wait_timeout"]
