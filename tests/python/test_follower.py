"""Following from Python: the target is exact, changes only when told to, and can be taken back."""

import asyncio
import contextlib
import shutil
import subprocess
import threading

import numpy as np
import pytest
import weightwire as ww
from conftest import REFUSED_IN_A_FORK, assert_same, publish, run_script, small_state


def zeros_like(state):
    return {name: np.zeros_like(array) for name, array in state.items()}


def changed(state, row):
    state = {name: array.copy() for name, array in state.items()}
    state["embed.weight"][row] += 1
    return state


@contextlib.contextmanager
def at_first_of_two(bucket, first, second):
    """A follower, and its target, which holds the first of two versions."""
    publish(bucket, first)
    target = zeros_like(first)
    with ww.Follower(bucket, target) as follower:
        follower.poll().apply()
        publish(bucket, second)
        yield follower, target


def test_arrays_change_only_when_told_to_and_then_exactly(bucket):
    first, second = small_state(), changed(small_state(), 3)
    publish(bucket, first)
    target = zeros_like(first)
    with ww.Follower(bucket, target) as follower:
        update = follower.poll()
        assert_same(target, zeros_like(first))
        assert (update.from_version, update.version) == (None, 0)
        update.apply()
        assert_same(target, first)
        assert follower.poll() is None
        with ww.Publisher(bucket) as publisher:
            publisher.publish(1, model=second)
        update = follower.poll()
        assert (update.from_version, update.version) == (0, 1)
        assert_same(target, first)
        update.apply()
        assert_same(target, second)
        follower.verify()
        assert follower.status.lag_versions == 0
        assert follower.version == 1


def test_verifying_a_target_that_holds_nothing_is_refused(bucket, tmp_path):
    publish(bucket, small_state())
    with ww.Follower(bucket, zeros_like(small_state())) as follower:
        with pytest.raises(ww.InvalidArgumentError, match="hold no version yet"):
            follower.verify()
        follower.poll()  # loaded, and not yet in the arrays
        with pytest.raises(ww.InvalidArgumentError, match="hold no version yet"):
            follower.verify()
    follower = ww.Follower(bucket, tmp_path / "mirror")
    with follower, pytest.raises(ww.InvalidArgumentError, match="holds no version yet"):
        follower.verify()


def test_a_directory_that_holds_a_version_is_recognized(bucket, tmp_path, weightwire_command):
    publish(bucket, small_state())
    subprocess.run([weightwire_command, "checkout", bucket, tmp_path / "there"], check=True, capture_output=True)
    with ww.Follower(bucket, tmp_path / "there", adopt=True) as follower:
        assert follower.version == 0
        assert follower.poll() is None


def test_the_last_update_can_be_taken_back(bucket):
    first, second = small_state(), changed(small_state(), 3)
    publish(bucket, first)
    target = zeros_like(first)
    with ww.Follower(bucket, target) as follower:
        follower.poll().apply()
        with ww.Publisher(bucket) as publisher:
            publisher.publish(1, model=second)
        update = follower.poll().apply()
        update.undo()
        assert_same(target, first)
        assert follower.version == 0
        assert follower.poll() is None  # it is pinned
        with pytest.raises(ww.InvalidArgumentError, match="cannot be taken back"):
            update.undo()
        follower.unpin()
        follower.poll().apply()
        assert_same(target, second)


def test_a_pinned_follower_knows_the_newest_version(bucket):
    first, second = small_state(), changed(small_state(), 3)
    publish(bucket, first)
    with ww.Follower(bucket, zeros_like(first)) as follower:
        with pytest.raises(ww.InvalidArgumentError, match="name the version"):
            follower.pin()
        follower.poll().apply()
        follower.pin()
        publish(bucket, second, first)
        assert follower.poll() is None
        status = follower.status
        assert (status.version, status.pinned_version, status.newest_version, status.lag_versions) == (0, 0, 2, 2)
        follower.pin(1)
        assert follower.poll().apply().version == 1
        follower.pin(0)
        update = follower.poll()
        assert (update.from_version, update.version, update.is_full_load) == (1, 0, True)
        update.apply()
        assert follower.poll() is None
        follower.unpin()
        assert follower.poll().apply().version == 2
        assert follower.status.pinned_version is None


def test_a_pin_on_a_version_to_come_leads_there_and_no_further(bucket):
    states = some_versions(4)
    publish(bucket, states[0])
    target = zeros_like(states[0])
    with ww.Follower(bucket, target) as follower:
        follower.pin(2)
        assert follower.poll().apply().version == 0
        assert follower.poll() is None
        publish(bucket, *states[1:])
        assert follower.poll().apply().version == 2
        assert follower.poll() is None
        assert_same(target, states[2])


def contents(directory):
    """Of the checkpoint that readers see."""
    directory = directory / "current" if (directory / "current").exists() else directory
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.mark.parametrize("swap", [False, True])
def test_polling_never_changes_a_mirror(bucket, tmp_path, swap):
    states = some_versions(4)
    mirror = tmp_path / "mirror"
    with (
        ww.Publisher(bucket, anchor_every=2) as publisher,
        ww.Follower(bucket, mirror, swap=swap, wait_for_run=True) as follower,
    ):
        for step, state in enumerate(states):
            publish_one(publisher, step, state)
            if step == 2:
                for part in (bucket / "deltas").rglob("*.safetensors"):
                    part.unlink()  # only an anchor leads there
            before, held = contents(mirror) if mirror.exists() else {}, follower.version
            update = follower.poll()
            assert update.is_full_load == (step in (0, 2))
            assert (update.changes is None) == update.is_full_load
            assert not update.applied and update.apply_seconds is None
            assert (contents(mirror), follower.version) == (before, held)
            assert follower.status.staged_version == step
            update.apply()
            assert (follower.version, follower.status.staged_version) == (step, None)
            assert contents(mirror) != before
            follower.verify()


def publish_one(publisher, step, state):
    publisher.publish(step, model=state).result()
    publisher.flush(60)


def test_a_run_that_is_not_there_is_an_error_or_waited_for(bucket, tmp_path):
    state = small_state()
    with pytest.raises(ww.NotFoundError):
        ww.Follower(bucket, tmp_path / "mirror")
    assert not bucket.exists() and not (tmp_path / "mirror").exists()
    target = zeros_like(state)
    with ww.Follower(bucket, target, wait_for_run=True, poll_interval=0.01) as follower:
        assert follower.poll() is None
        assert follower.run_id is None
        assert follower.status.waiting_for is not None and follower.status.lag_versions is None
        assert not bucket.exists()
        publish(bucket, state)
        assert follower.wait(timeout=60).apply().version == 0
        assert len(follower.run_id) == 32 and follower.run == str(bucket)
    assert_same(target, state)


def test_a_mirror_in_its_own_run_is_refused(bucket, tmp_path):
    publish(bucket, small_state())
    for directory in (bucket, bucket / "mirror", tmp_path):
        with pytest.raises(ww.InvalidArgumentError, match="directory of its own"):
            ww.Follower(bucket, directory)


def test_options_of_directories_are_refused_for_arrays(bucket):
    publish(bucket, small_state())
    for option in ("adopt", "include_code", "swap"):
        with pytest.raises(ww.InvalidArgumentError, match=f"{option}=True is for directories"):
            ww.Follower(bucket, zeros_like(small_state()), **{option: True})


def test_the_status_says_why_the_last_poll_failed(bucket):
    first, second = small_state(), changed(small_state(), 3)
    with at_first_of_two(bucket, first, second) as (follower, _):
        (part,) = (bucket / "deltas").rglob("*.safetensors")
        sound = part.read_bytes()
        part.write_bytes(sound[:-1] + b"\0")
        with pytest.raises(ww.CorruptError):
            follower.poll()
        assert "damaged" in follower.status.last_error
        part.write_bytes(sound)
        follower.poll()
        assert follower.status.last_error is None


def test_a_mirror_is_digested_before_it_is_gone_on_from_unless_told_otherwise(bucket, tmp_path):
    publish(bucket, small_state())
    mirror = tmp_path / "mirror"
    with ww.Follower(bucket, mirror) as follower:
        follower.poll().apply()
    (file,) = mirror.glob("*.safetensors")
    sound = file.read_bytes()
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with ww.Follower(bucket, mirror, verify=False) as follower:
        assert follower.version == 0  # believed
        with pytest.raises(ww.CorruptError):
            follower.verify()
        assert follower.version is None
    with ww.Follower(bucket, mirror) as follower:
        assert follower.version is None
        update = follower.poll()
        assert follower.version is None and file.read_bytes() != sound
        update.apply()
        assert follower.version == 0
    assert file.read_bytes() == sound


def test_a_mirror_that_is_loaded_says_that_everything_may_have_changed(bucket, tmp_path):
    state = small_state()
    with (
        ww.Publisher(bucket, anchor_every=1, anchor_percent=None) as publisher,
        ww.Follower(bucket, tmp_path / "mirror") as follower,
    ):
        publisher.publish(0, model=state).result()
        first = follower.poll()
        assert (first.version, first.changes, first.layout_changed) == (0, None, False)
        assert first.apply() is first
        assert first.apply() is first, "an update may be applied twice"


def test_what_was_seen_is_still_known_after_an_update_was_taken_back(bucket):
    states = [small_state(), changed(small_state(), 3)]
    publish(bucket, *states)
    target = {name: array.copy() for name, array in states[0].items()}
    with ww.Follower(bucket, target) as follower:
        update = follower.poll().apply()
        assert (follower.status.newest_version, follower.status.lag_versions) == (1, 0)
        update.undo()
        assert not update.applied
        status = follower.status
        assert (status.version, status.newest_version, status.lag_versions, status.pinned_version) == (0, 1, 1, 0)
        assert status.waiting_for is None


def test_a_target_that_holds_a_version_is_recognized(bucket):
    first, second = small_state(), changed(small_state(), 3)
    publish(bucket, first, second)
    target = {name: array.copy() for name, array in first.items()}
    with ww.Follower(bucket, target) as follower:
        assert follower.version == 0
        follower.poll().apply()
        assert follower.status.anchors_loaded == 0
    assert_same(target, second)


def test_a_target_that_does_not_fit_is_refused_and_untouched(bucket):
    state = small_state()
    publish(bucket, state)
    for wrong in (
        {**zeros_like(state), "more": np.zeros(3)},
        {name: array for name, array in zeros_like(state).items() if name != "scale"},
        {**zeros_like(state), "scale": np.zeros((), np.float32)},
    ):
        with pytest.raises(ww.MismatchError, match="do not fit the run"), ww.Follower(bucket, wrong) as follower:
            follower.poll()


def test_somebody_elses_writes_are_found_by_a_check(bucket):
    state = small_state()
    publish(bucket, state)
    target = zeros_like(state)
    with ww.Follower(bucket, target) as follower:
        follower.poll().apply()
        target["embed.weight"][1, 1] += 1
        with pytest.raises(ww.CorruptError, match="something else has written"):
            follower.verify()
        assert follower.version is None
        update = follower.poll()
        assert (update.from_version, update.version, update.is_full_load) == (None, 0, True)
        update.apply()
        assert_same(target, state)


@pytest.mark.parametrize("verify", [True, False])
def test_an_update_finds_what_something_else_wrote_to_the_arrays(bucket, caplog, verify):
    """Anywhere, while the update is staged, and before it writes. Without verify, only where it writes."""
    first = small_state()
    second = {name: array.copy() for name, array in first.items()}
    second["embed.weight"][1, 1] += 1
    target = zeros_like(first)
    with ww.Publisher(bucket, first) as publisher:
        publisher.publish(0).result()
        with ww.Follower(bucket, target, verify=verify) as follower:
            follower.poll().apply()
            publisher.publish(1, model=second).result()
            staged = None if verify else follower.poll()
            target["embed.weight"][(2, 2) if verify else (1, 1)] += 1
            altered = {name: array.copy() for name, array in target.items()}
            if staged is not None:
                with pytest.raises(ww.CorruptError, match="something else has written"):
                    staged.apply()
            update = follower.poll()
            assert_same(target, altered)
            assert (follower.version, update.from_version, update.is_full_load) == (None, None, True)
            assert "something else has written" in follower.status.last_error
            assert "something else has written" in caplog.text
            update.apply()
            assert_same(target, second)
            assert follower.status.last_error is None


def test_a_delta_that_meets_somebody_elses_writes_is_not_blamed_for_them(bucket):
    """Whoever wrote there, the arrays become the version again, from an anchor."""
    first, second = small_state(), changed(small_state(), 3)
    with at_first_of_two(bucket, first, second) as (follower, target):
        for array in target.values():
            array[...] = 0
        update = follower.poll()
        assert update.version == 1
        update.apply()
        assert_same(target, second)
        follower.verify()


def test_without_an_anchor_somebody_elses_writes_are_said(bucket):
    first, second = small_state(), changed(small_state(), 3)
    with at_first_of_two(bucket, first, second) as (follower, target):
        shutil.rmtree(bucket / "anchors")
        for array in target.values():
            array[...] = 0
        for _ in range(2):
            with pytest.raises(ww.CorruptError, match=r"no longer hold version 0: something else has written"):
                follower.poll()


def some_versions(count):
    states = [small_state()]
    for row in range(1, count):
        states.append(changed(states[-1], row))
    return states


def test_every_version_is_an_update_of_its_own_if_asked_for(bucket):
    states = some_versions(5)
    publish(bucket, states[0])
    target = zeros_like(states[0])
    with ww.Follower(bucket, target, every_version=True, poll_interval=0.01) as follower:
        follower.poll().apply()
        publish(bucket, *states[1:])
        assert follower.wait(version=4).version == 1, "the first one on the path"
        for update in follower.updates():
            assert (update.from_version, update.version) == (update.version - 1, follower.version + 1)
            assert follower.status.newest_version == 4
            update.apply()
            assert_same(target, states[update.version])
            if update.version == 4:
                break
        assert follower.status.versions_applied == 4


async def take_async(follower, count):
    versions = []
    async for update in follower.updates_async():
        await update.apply_async()
        versions.append(update.version)
        if len(versions) == count:
            return versions


def take(follower, count):
    versions = []
    for update in follower.updates():
        versions.append(update.apply().version)
        if len(versions) == count:
            return versions


@pytest.mark.parametrize("take", [take, lambda *arguments: asyncio.run(take_async(*arguments))])
def test_a_loop_takes_several_versions_at_once_and_minds_the_pin(bucket, take):
    states = some_versions(6)
    publish(bucket, states[0])
    target = zeros_like(states[0])
    with ww.Follower(bucket, target, poll_interval=0.01) as follower:
        follower.pin(2)
        assert take(follower, 1) == [0]
        publish(bucket, *states[1:])
        assert take(follower, 1) == [2]
        follower.unpin()
        assert take(follower, 1) == [5]
        follower.pin(1)
        assert take(follower, 1) == [1]
    assert_same(target, states[1])


def test_a_loop_waits_for_more_than_an_update_that_was_not_applied(bucket):
    states = some_versions(3)
    publish(bucket, *states[:2])
    with ww.Follower(bucket, zeros_like(states[0]), poll_interval=0.01) as follower:
        updates = follower.updates()
        assert next(updates).version == 1
        publish(bucket, states[2])
        assert next(updates).version == 2


def test_closing_ends_a_loop(bucket):
    publish(bucket, small_state())
    with ww.Follower(bucket, zeros_like(small_state()), poll_interval=0.01) as follower:
        updates = follower.updates()
        next(updates).apply()
        thread = threading.Thread(target=follower.close)
        thread.start()
        assert list(updates) == []
        thread.join()


def test_everything_can_be_done_in_an_event_loop(bucket):
    state = small_state()
    target = zeros_like(state)

    async def everything():
        async with await ww.Publisher.open_async(bucket, state) as publisher:
            await publisher.publish(0).result_async()
        async with await ww.Follower.open_async(bucket, target, poll_interval=0.01) as follower:
            update = await (await follower.poll_async()).apply_async()
            assert await follower.poll_async() is None
            await follower.pin_async()
            await follower.unpin_async()
            await follower.verify_async()
            with pytest.raises(ww.InvalidArgumentError, match="take back"):
                await update.undo_async()
        with pytest.raises(KeyError):
            async with ww.Publisher(bucket, state):
                raise KeyError
        return await ww.load_async(bucket)

    assert_same(asyncio.run(everything()), state)
    assert_same(target, state)


def test_a_bucket_that_is_away_is_waited_for(bucket, tmp_path):
    first, second = small_state(), changed(small_state(), 3)
    with at_first_of_two(bucket, first, second) as (follower, target):
        bucket.rename(tmp_path / "away")
        with pytest.raises(ww.WaitTimeoutError, match="not there any more"):
            follower.wait(version=1, timeout=0.5)
        asked = threading.Event()
        poll = follower._poll

        def poll_and_tell(patience):
            asked.set()
            return poll(patience)

        follower._poll = poll_and_tell

        def bring_it_back():
            asked.wait()
            (tmp_path / "away").rename(bucket)

        thread = threading.Thread(target=bring_it_back)
        thread.start()
        follower.wait(version=1, timeout=60).apply()
        thread.join()
        assert_same(target, second)


def test_waiting_ends_when_the_time_is_up(bucket):
    state = small_state()
    publish(bucket, state)
    target = zeros_like(state)
    with ww.Follower(bucket, target, poll_interval=0.01) as follower:
        follower.wait(version=0, timeout=30).apply()
        held = follower.wait(version=0)
        assert (held.version, held.applied, held.changes, held.apply()) == (0, True, [], held)
        with pytest.raises(ww.WaitTimeoutError, match="version 7 did not come"):
            follower.wait(version=7, timeout=0.05)
        with pytest.raises(TimeoutError, match=r"version 7 did not come within 0\.05 seconds"):
            asyncio.run(follower.wait_async(version=7, timeout=0.05))


def test_an_event_loop_follows(bucket):
    state = small_state()
    publish(bucket, state, changed(state, 2))
    target = zeros_like(state)

    async def follow(follower):
        async for update in follower.updates_async():
            update.apply()
            return update.version

    with ww.Follower(bucket, target, poll_interval=0.01) as follower:
        assert asyncio.run(follow(follower)) == 1
    assert_same(target, changed(state, 2))


def test_an_anchor_that_takes_many_requests_is_loaded(bucket, tmp_path, weightwire_command):
    """Larger than what is fetched at once, for whoever joins and for who verifies."""
    state = {"large": np.random.default_rng(0).random((3000, 3001), np.float32), "small": np.arange(3)}
    publish(bucket, state)
    assert_same(ww.load(bucket), state)
    for command in (["verify", bucket], ["follow", bucket, tmp_path / "mirror", "--once"]):
        subprocess.run([weightwire_command, *command], check=True, capture_output=True)
    target = zeros_like(state)
    with ww.Follower(bucket, target) as follower:
        follower.poll().apply()
    assert_same(target, state)


def test_a_mirror_is_kept_by_python_and_read_by_the_command(bucket, tmp_path, weightwire_command):
    first, second = small_state(), changed(small_state(), 3)
    publish(bucket, first)
    with ww.Follower(bucket, tmp_path / "mirror") as follower:
        assert follower.poll().apply().version == 0
        publish(bucket, second)
        follower.poll().apply()
        follower.verify()
        digest = follower.status.digest
    shown = subprocess.run(
        [weightwire_command, "digest", tmp_path / "mirror"], capture_output=True, text=True, check=True
    )
    assert digest in shown.stdout
    assert_same(ww.load(bucket), second)


def test_the_version_asked_for_is_loaded_or_nothing(bucket):
    states = [small_state(), changed(small_state(), 1), changed(small_state(), 2)]
    publish(bucket, *states)
    assert_same(ww.load(bucket, version=1), states[1])
    with pytest.raises(ww.NotFoundError, match="no version 9"):
        ww.load(bucket, version=9)


def test_what_cannot_be_followed_into_or_loaded_is_refused(bucket):
    publish(bucket, small_state())
    for target in ([np.zeros(3)], object(), 3):
        with pytest.raises(ww.InvalidArgumentError, match="cannot follow into a"):
            ww.Follower(bucket, target)
    with pytest.raises(ww.InvalidArgumentError, match="names of tensors are strings"):
        ww.Follower(bucket, {1: np.zeros(3)})
    with pytest.raises(ww.InvalidArgumentError, match="'w' is of the type list, which is not an array"):
        ww.Follower(bucket, {"w": [1.0, 2.0]})
    for version in (-1, "1", 2**63):
        with pytest.raises(ww.InvalidArgumentError, match="version is a whole number"):
            ww.load(bucket, version=version)


def test_a_damaged_object_is_an_error_and_the_arrays_stay_exact(bucket):
    first, second = small_state(), changed(small_state(), 3)
    with at_first_of_two(bucket, first, second) as (follower, target):
        (part,) = (bucket / "deltas").rglob("*.safetensors")
        part.write_bytes(part.read_bytes()[:-1] + b"\0")
        with pytest.raises(ww.CorruptError, match=rf"no way to version 1.*{part.name}.*damaged"):
            follower.poll()
        assert_same(target, first)


def test_what_an_update_changes_is_known_before_it_is_applied(bucket):
    first, second = small_state(), changed(small_state(), 3)
    second["layer.bias"][[0, 6]] = [1, 2]
    publish(bucket, first)
    target = {name: array.copy() for name, array in first.items()}
    with ww.Follower(bucket, target) as follower:
        assert follower.poll() is None
        publish(bucket, second)
        update = follower.poll()
        assert not update.layout_changed
        changes = {change.name: change for change in update.changes}
        assert sorted(changes) == ["embed.weight", "layer.bias"]
        for name, change in changes.items():
            words = change.new_bits.dtype
            old, new = (state[name].reshape(-1).view(words) for state in (first, second))
            assert change.positions.tolist() == np.flatnonzero(old != new).tolist()
            assert change.new_bits.tolist() == new[change.positions].tolist()
            assert change.old_bits.tolist() == old[change.positions].tolist()
        with pytest.raises(ValueError, match="read-only"):
            changes["layer.bias"].new_bits[0] = 0
        update.apply()
        assert [change.name for change in update.changes] == [change.name for change in changes.values()]
        assert changes["layer.bias"].changed_units == 2
    del follower, update
    assert changes["layer.bias"].new_bits.view(np.float16).tolist() == [1, 2]  # outlives both


def test_a_whole_load_and_another_layout_say_so(bucket):
    state = small_state()
    publish(bucket, state)
    with ww.Follower(bucket, zeros_like(state)) as follower:
        assert follower.poll().changes is None
    with ww.Follower(bucket, bucket.parent / "mirror") as follower:
        follower.poll().apply()
        publish(bucket, {**state, "more": np.arange(3.0)})
        update = follower.poll()
        assert update.layout_changed
        (more,) = update.changes
        assert (more.name, more.positions.tolist()) == ("more", [])
        assert more.full_bytes.view(np.float64).tolist() == [0, 1, 2]


def test_an_outdated_update_is_refused(bucket):
    states = some_versions(3)
    publish(bucket, states[0])
    target = zeros_like(states[0])
    with ww.Follower(bucket, target) as follower:
        follower.poll().apply()
        publish(bucket, states[1])
        outdated = follower.poll()
        publish(bucket, states[2])
        follower.poll()
        with pytest.raises(ww.InvalidArgumentError, match="later poll"):
            outdated.apply()
        update = follower.poll()
        follower.pin(1)
        with pytest.raises(ww.InvalidArgumentError, match="outdated"):
            update.apply()
        assert_same(target, states[0])


def test_a_fork_may_drop_what_its_parent_had_open_or_closed(tmp_path):
    """A data loader's worker does, whenever it collects garbage."""
    script = """
weights = {"w": np.arange(100_000, dtype=np.float32)}
closed = ww.Publisher("bucket", weights, threads=4)
tickets = [closed.publish()]
tickets[0].result()
closed.close()
opened = ww.Publisher("other", weights, threads=4)
tickets.append(opened.publish())
followers = [ww.Follower("bucket", {"w": np.zeros(100_000, np.float32)}, threads=4) for _ in range(2)]
updates = [follower.poll() for follower in followers]
followers[1].close()
pid = os.fork()
if pid == 0:
    del closed, opened, tickets, followers, updates
    gc.collect()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
tickets[1].result()
updates[0].apply()
opened.close()
"""
    ran = run_script(tmp_path, "import gc, os\nimport numpy as np\nimport weightwire as ww\n" + script)
    assert ran.returncode == 0, ran.stderr


def test_a_fork_that_ends_leaves_its_parent_s_follower_as_it_is(tmp_path):
    script = """
weights = {"w": np.arange(10, dtype=np.float32)}
with ww.Publisher("bucket", weights) as publisher:
    publisher.publish().result()
    target = {"w": np.zeros(10, np.float32)}
    with ww.Follower("bucket", target) as follower:
        follower.poll().apply()
        fork_that_refuses(follower.poll, follower.verify)
        weights["w"] += 1
        publisher.publish().result()
        follower.wait(timeout=60).apply()
    assert (target["w"] == weights["w"]).all()
"""
    ran = run_script(tmp_path, REFUSED_IN_A_FORK + script)
    assert ran.returncode == 0, ran.stderr
