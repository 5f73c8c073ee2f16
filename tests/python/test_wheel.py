"""The wheel installs and runs where there is no compiler and none of the libraries it was built with."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

BUNDLED = ("libcurl", "libcrypto", "libfmt", "libhwy", "libpugixml")
USE_IT = """
import sys, tempfile
import numpy as np
import weightwire as ww
bucket = tempfile.mkdtemp()
with ww.Publisher(bucket, {"w": np.arange(5, dtype=np.float32)}) as publisher:
    publisher.publish(0).result()
assert ww.load(bucket)["w"].tolist() == [0, 1, 2, 3, 4]
print(open("/proc/self/maps").read())
"""


@pytest.fixture(scope="module")
def wheel():
    """Made by ./dev wheel."""
    if "WW_TEST_WHEEL" not in os.environ:
        pytest.skip("no wheel: run ./dev test python")
    return Path(os.environ["WW_TEST_WHEEL"])


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """An empty virtual environment with the wheel in it, installed without a compiler in sight."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run(
        [folder / "bin/pip", "install", "-q", "--only-binary", ":all:", wheel],
        check=True,
        env={**os.environ, "PATH": str(folder / "bin")},
    )
    return folder


def test_the_wheel_carries_the_libraries_it_needs(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for library in (*BUNDLED, "libcpp-httplib"):  # the last one only for the command
        assert any(name.startswith(f"weightwire.libs/{library}") for name in names), library
    assert any("manylinux" in part for part in wheel.name.split("-"))


def test_the_installed_package_runs_with_its_own_libraries(environment):
    bare = {"PATH": str(environment / "bin"), "HOME": os.environ.get("HOME", "/")}
    ran = subprocess.run(
        [environment / "bin/python", "-c", USE_IT], env=bare, check=True, capture_output=True, text=True
    )
    loaded = {line.split()[-1] for line in ran.stdout.splitlines() if "/" in line}
    for library in BUNDLED:
        # Python's own modules may have loaded the system's beside it.
        assert any("weightwire.libs" in path for path in loaded if Path(path).name.startswith(library)), library


def test_the_installed_command_runs(environment, tmp_path):
    bare = {"PATH": str(environment / "bin")}
    shown = subprocess.run(["weightwire", "--version"], env=bare, check=True, capture_output=True, text=True)
    assert shown.stdout.startswith("weightwire ")
    subprocess.run(["weightwire", "init", tmp_path / "run"], env=bare, check=True)
