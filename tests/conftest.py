import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture
def roundtrip():
    """roundtrip(source, output, *max_shard_bytes): the checkpoint opened and written again by the C++ code."""
    program = Path(os.environ.get("WW_TEST_TOOLS", REPOSITORY / "build/tests")) / "roundtrip"

    def run(source, output, *max_shard_bytes):
        arguments = [str(argument) for argument in (program, source, output, *max_shard_bytes)]
        result = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return output

    return run
