"""`Run`: what a program asks about a run, and versions taken out of it. The command's JSON is the other surface."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import weightwire as ww
from conftest import assert_same, publish, small_state


@pytest.fixture
def states():
    """Three versions; the last one has another layout."""
    first = small_state()
    second = {**first, "layer.bias": first["layer.bias"] + np.float16(1)}
    return [first, second, {**second, "new": np.arange(3, dtype=np.int32)}]


@pytest.fixture
def run(bucket, states):
    publish(bucket, *states)
    return ww.Run(bucket)


@pytest.fixture
def ask(weightwire_command, bucket):
    def ask(*arguments):
        command = [weightwire_command, *map(str, arguments), str(bucket), "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    return ask


def fields(objects):
    return [dataclasses.asdict(one) for one in objects]


def remove_anchor_of_the_first_version(bucket):
    for manifest in bucket.glob("anchors/00000000000000000000/*/anchor.json"):
        manifest.unlink()


def test_versions_have_the_fields_and_values_of_the_command(run, ask, bucket):
    said = ask("log")
    assert said["run"] == run.run == str(bucket)
    assert said["run_id"] == run.run_id and len(run.run_id) == 32
    assert said["versions"] == fields(run.versions())
    assert [list(version) for version in said["versions"]] == [[f.name for f in dataclasses.fields(ww.VersionInfo)]] * 3
    assert said["newest_version"] == run.newest().version == 2


def test_followers_have_the_fields_and_values_of_the_command(run, ask, bucket, tmp_path):
    with ww.Follower(bucket, tmp_path / "mirror", name="rollout") as follower:
        follower.wait(timeout=30)
        (info,) = run.followers()
        said = ask("followers")
        assert said["followers"] == fields([info])
        assert list(said["followers"][0]) == [f.name for f in dataclasses.fields(ww.FollowerInfo)]
        assert (said["run_id"], said["newest_version"], said["unreadable_leases"]) == (run.run_id, 2, 0)
        assert (info.name, info.is_active, info.newest_version) == ("rollout", True, 2)
    assert run.followers() == []


def test_a_follower_without_a_name_or_version_has_none(run, bucket):
    follower_id = "074cdde4132a64f0abe703cfd21858a2"
    lease = {
        "format": "weightwire-lease",
        "run_id": run.run_id,
        "id": follower_id,
        "name": "",
        "version": None,
        "needs_deltas_after": None,
        "needs_anchor": f"anchors/{1:020}/{follower_id}",
        "ttl_seconds": 900,
    }
    (bucket / "leases").mkdir(exist_ok=True)
    path = bucket / f"leases/{follower_id}.json"
    path.write_text(json.dumps(lease))
    (info,) = run.followers()
    assert (info.name, info.version, info.lag_versions, info.needs_deltas_after) == (None, None, None, None)
    assert (info.needs_anchor_version, info.ttl_seconds, info.is_active) == (1, 900.0, True)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    (info,) = run.followers()
    assert (info.renewed_time, info.is_active) == ("2001-09-09T01:46:40.000Z", False)


def test_a_lease_that_cannot_be_read_is_a_warning(run, bucket, caplog):
    (bucket / "leases").mkdir(exist_ok=True)
    (bucket / f"leases/{'0' * 32}.json").write_text("damaged")
    assert run.followers() == []
    assert "1 leases" in caplog.text


def test_a_version_says_what_it_took_to_send(run, states):
    first, second, third = run.versions()
    assert (first.delta_bytes, first.changed_elements) == (None, None)
    assert first.anchor_bytes > first.model_bytes == sum(array.nbytes for array in states[0].values())
    assert second.anchor_bytes is None and 0 < second.delta_bytes < second.model_bytes
    assert second.changed_elements == states[0]["layer.bias"].size
    assert second.elements == sum(array.size for array in states[0].values())
    assert [version.layout_changed for version in (first, second, third)] == [False, False, True]
    assert [version.step for version in (first, second, third)] == [0, 1, 2]
    assert all(version.can_check_out for version in (first, second, third))


def test_only_as_many_versions_as_asked_for(run):
    assert [version.version for version in run.versions(last=2)] == [1, 2]
    assert [version.version for version in run.versions(last=np.int64(9))] == [0, 1, 2]
    assert run.versions(last=1)[0].layout_changed  # of the version before, which is not shown
    for wrong in (0, -1, "2"):
        with pytest.raises(ww.InvalidArgumentError, match="last"):
            run.versions(last=wrong)


def test_a_run_without_versions(bucket, weightwire_command):
    subprocess.run([weightwire_command, "init", bucket], check=True, capture_output=True)
    run = ww.Run(bucket)
    assert run.newest() is None and run.versions() == [] and run.followers() == []
    with pytest.raises(ww.NotFoundError, match="no version yet"):
        run.load()
    with pytest.raises(ww.NotFoundError, match="no version yet"):
        run.checkout(bucket.parent / "out")


def test_no_run_is_not_found(tmp_path):
    with pytest.raises(ww.NotFoundError, match="no run"):
        ww.Run(tmp_path / "nowhere")
    with pytest.raises(ww.NotFoundError, match="no run"):
        asyncio.run(ww.Run.open_async(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_any_version_can_be_loaded(run, bucket, states):
    for version, state in enumerate(states):
        assert_same(run.load(version), state)
        assert_same(ww.load(bucket, version, threads=1), state)
    assert_same(run.load(), states[2])
    with pytest.raises(ww.NotFoundError, match="no version 3"):
        run.load(3)
    for wrong in ({"version": -1}, {"threads": 0}, {"framework": "jax"}):
        with pytest.raises(ww.InvalidArgumentError):
            run.load(**wrong)


def test_a_checkout_is_a_plain_directory(run, tmp_path, states):
    from safetensors.numpy import load_file

    info = run.checkout(tmp_path / "out", 1)
    assert info == run.versions()[1]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.safetensors"]
    assert_same(load_file(tmp_path / "out/model.safetensors"), states[1])
    assert run.checkout(tmp_path / "newest").version == 2
    with pytest.raises(ww.InvalidArgumentError, match="already exists"):
        run.checkout(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bucket", "newest", "out"]


def test_a_checkout_leaves_code_out_unless_asked(bucket, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "modeling.py").write_text("print('hello')")
    publish(bucket, small_state(), extra_files=files, include_code=True)
    run = ww.Run(bucket)
    run.checkout(tmp_path / "without")
    run.checkout(tmp_path / "with", include_code=True)
    assert not (tmp_path / "without/modeling.py").exists() and (tmp_path / "with/modeling.py").exists()


def test_a_removed_version_says_so_and_what_can_still_be_fetched(bucket, states, tmp_path):
    publish(bucket, *states, anchor_every=2)
    remove_anchor_of_the_first_version(bucket)
    run = ww.Run(bucket)
    assert [version.can_check_out for version in run.versions()] == [False, False, True]
    assert [version.anchor_bytes is None for version in run.versions()] == [True, True, False]
    for take in (lambda: run.load(1), lambda: run.checkout(tmp_path / "out", 1)):
        with pytest.raises(ww.NotFoundError, match=r"version 1 .*cannot be fetched any more.*gc.*version 2$"):
            take()
    assert not list(tmp_path.glob(".*")), "a failed checkout removes its hidden folder"
    assert_same(run.load(2), states[2])


def test_every_method_has_a_twin_for_event_loops(bucket, states, tmp_path):
    publish(bucket, *states)

    async def main():
        run = await ww.Run.open_async(bucket)
        assert await run.newest_async() == run.newest()
        assert await run.versions_async(last=1) == run.versions(last=1)
        assert await run.followers_async() == []
        assert_same(await run.load_async(0), states[0])
        assert_same(await ww.load_async(bucket), states[2])
        assert (await run.checkout_async(tmp_path / "out", 0)).version == 0

    asyncio.run(main())


def test_several_threads_may_ask_at_once(run, states):
    wrong = []

    def ask():
        try:
            assert len(run.versions()) == 3
            assert_same(run.load(1), states[1])
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_fork_may_ask_too(bucket, states):
    publish(bucket, *states)
    script = f"""
import os, weightwire as ww
run = ww.Run({str(bucket)!r})
child = os.fork()
assert run.newest().version == 2 and len(run.load()) == 6
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_after_ctrl_c_the_run_can_be_asked_again(run):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            while True:
                run.load()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert run.newest().version == 2 and len(run.load()) == 6


def test_answers_cannot_be_changed_and_can_be_pickled(run):
    newest = run.newest()
    with pytest.raises(dataclasses.FrozenInstanceError):
        newest.version = 7
    assert pickle.loads(pickle.dumps(newest)) == newest
    assert repr(run).startswith("Run('")
