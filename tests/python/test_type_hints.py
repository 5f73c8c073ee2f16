"""What the package says of its types is true, as far as a program can tell."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import weightwire
from test_doc_examples import PAGES, examples
from weightwire import _core

PACKAGE = Path(weightwire.__file__).parent


def test_the_stub_names_what_the_extension_module_has():
    stub = ast.parse((PACKAGE / "_core.pyi").read_text())
    said = {}
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            said[node.name] = {method.name for method in node.body if isinstance(method, ast.FunctionDef)} - {
                "__init__"
            }
        elif isinstance(node, ast.FunctionDef):
            said[node.name] = set()
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            said[node.target.id] = set()
    is_there = {
        name: {method for method in dir(value) if not method.startswith("_")} if isinstance(value, type) else set()
        for name, value in vars(_core).items()
        if not name.startswith("_")
    }
    assert said == is_there


def test_a_type_checker_finds_nothing():
    # What others' packages say of theirs is not looked at: it takes a minute. Engines need not be there.
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=skip",
            "--ignore-missing-imports",
            "--allow-subclassing-any",
            "-p",
            "weightwire",
        ],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        env={**os.environ, "MYPY_CACHE_DIR": os.devnull},
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_type_checker_finds_nothing_in_a_program_that_uses_it(tmp_path):
    program = """
import weightwire as ww
from typing_extensions import Unpack


async def follow(follower: ww.Follower) -> None:
    update = await follower.wait_async(timeout=60)
    update.apply()
    async for update in follower.updates_async():
        await update.apply_async()
    async with await ww.Follower.open_async("run", "mirror") as other:
        await other.verify_async()


def open_mine(run: str, **options: Unpack[ww.PublisherOptions]) -> ww.Publisher:
    return ww.Publisher(run, {"w": bytearray(4)}, **options)


async def publish() -> ww.PublishStatus:
    async with await ww.Publisher.open_async("run", {}, dtype="bfloat16") as publisher:
        ticket = await publisher.publish_async(1)
        await ticket.wait_read_async()
        status = await ticket
        await publisher.close_async(timeout=60, discard=False)
    return status


with ww.Publisher("run", {}, dtype=ww.Fp8(ignore=["lm_head"]), anchor_every=None) as publisher:
    ticket = publisher.publish(1, model={"w": memoryview(b"1234")})
    print(ticket.status.stage_seconds["committed"], ticket.done(), ticket.exception(timeout=1))
    if ticket.result().delta_bytes is None:
        print(publisher.status.anchor_version, publisher.run, publisher.run_id)
open_mine("run", state_dir="state", base="disk", when_full="skip").close(discard=True)
follower = ww.Follower("run", {})
update = follower.wait(timeout=60)
update.apply()
follower.wait(version=7).apply()
lag: int | None = follower.status.lag_versions
for later in follower.updates():
    print([change.changed_units for change in later.changes or []])
"""
    check_types(tmp_path, {"program": program})


def test_a_type_checker_finds_nothing_in_the_examples_of_the_documentation(tmp_path):
    pages = {re.sub(r"\W", "_", page.stem): "\n".join(examples(page)) for page in PAGES}
    check_types(tmp_path, pages)


def check_types(folder, programs):
    """Checks each program with mypy in strict mode. torch's own types take a minute, so they are skipped."""
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = True\nignore_missing_imports = True\n[mypy-torch.*]\nfollow_imports = skip\n"
        "[mypy-transformers.*]\nfollow_imports = skip\n[mypy-datasets.*]\nfollow_imports = skip\n"
    )
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            "mypy.ini",
            "--follow-imports=silent",
            *(f"{name}.py" for name in programs),
        ],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "MYPY_CACHE_DIR": os.devnull, "MYPYPATH": str(PACKAGE.parent)},
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_package_imports_without_torch():
    code = "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None; import weightwire"
    subprocess.run([sys.executable, "-c", code], check=True)
