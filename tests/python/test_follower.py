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
        follower.check()
        assert follower.stats.versions_behind == 0
        assert follower.version == 1


def test_a_check_of_a_target_that_holds_nothing_is_refused(bucket, tmp_path):
    publish(bucket, small_state())
    with ww.Follower(bucket, zeros_like(small_state())) as follower:
        with pytest.raises(ww.InvalidArgumentError, match="hold no version yet"):
            follower.check()
        follower.poll()  # loaded, and not yet in the arrays
        with pytest.raises(ww.InvalidArgumentError, match="hold no version yet"):
            follower.check()
    follower = ww.Follower(bucket, tmp_path / "mirror")
    with follower, pytest.raises(ww.InvalidArgumentError, match="holds no version yet"):
        follower.check()


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
        follower.pin(None)
        follower.poll().apply()
        assert_same(target, second)


def test_the_newest_version_is_known_while_standing_still(bucket):
    first, second = small_state(), changed(small_state(), 3)
    publish(bucket, first)
    with ww.Follower(bucket, zeros_like(first)) as follower:
        assert follower.newest() == 0
        follower.poll().apply()
        follower.pin(0)
        with ww.Publisher(bucket) as publisher:
            publisher.publish(1, model=second)
            publisher.publish(2, model=first)
        assert follower.poll() is None
        assert (follower.newest(), follower.version) == (2, 0)


def test_a_mirror_is_digested_before_it_is_gone_on_from_unless_told_otherwise(bucket, tmp_path):
    publish(bucket, small_state())
    mirror = tmp_path / "mirror"
    with ww.Follower(bucket, mirror) as follower:
        follower.poll()
    (file,) = mirror.glob("*.safetensors")
    sound = file.read_bytes()
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with ww.Follower(bucket, mirror, check=False) as follower:
        assert follower.version == 0  # believed
        with pytest.raises(ww.CorruptError):
            follower.check()
    with ww.Follower(bucket, mirror) as follower:
        assert follower.version is None
        follower.poll()
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
        assert (first.version, first.changes, first.changes_layout) == (0, None, False)
        assert first.apply() is first


def test_what_was_seen_is_still_known_after_an_update_was_taken_back(bucket):
    states = [small_state(), changed(small_state(), 3)]
    publish(bucket, *states)
    target = {name: array.copy() for name, array in states[0].items()}
    with ww.Follower(bucket, target) as follower:
        update = follower.poll().apply()
        assert (follower.stats.newest, follower.stats.versions_behind) == (1, 0)
        update.undo()
        stats = follower.stats
        assert (stats.version, stats.newest, stats.versions_behind) == (0, 1, 1)
        assert "pinned" in stats.waits_for


def test_a_target_that_holds_a_version_is_recognized(bucket):
    first, second = small_state(), changed(small_state(), 3)
    publish(bucket, first, second)
    target = {name: array.copy() for name, array in first.items()}
    with ww.Follower(bucket, target) as follower:
        assert follower.version == 0
        follower.poll().apply()
        assert follower.stats.anchors_loaded == 0
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
            follower.check()


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
        follower.check()


def test_without_an_anchor_somebody_elses_writes_are_said(bucket):
    first, second = small_state(), changed(small_state(), 3)
    with at_first_of_two(bucket, first, second) as (follower, target):
        shutil.rmtree(bucket / "anchors")
        for array in target.values():
            array[...] = 0
        for _ in range(2):
            with pytest.raises(ww.CorruptError, match=r"does not hold version 0 any more: something else has written"):
                follower.poll()


def test_each_version_is_seen_by_who_asks_for_each(bucket):
    states = [small_state()]
    for row in range(1, 5):
        states.append(changed(states[-1], row))
    publish(bucket, states[0])
    target = zeros_like(states[0])
    with ww.Follower(bucket, target, poll_seconds=0.01) as follower:
        follower.poll().apply()
        publish(bucket, *states[1:])
        for update in follower:
            update.apply()
            assert_same(target, states[update.version])
            if update.version == 4:
                break
        assert follower.stats.versions_applied == 4


def some_versions(count):
    states = [small_state()]
    for row in range(1, count):
        states.append(changed(states[-1], row))
    return states


def first_of(follower):
    for update in follower:
        return update.apply()


async def first_of_async(follower):
    async for update in follower:
        return update.apply()


@pytest.mark.parametrize("first", [first_of, lambda follower: asyncio.run(first_of_async(follower))])
def test_a_loop_that_is_left_does_not_hold_the_follower_back(bucket, first):
    states = some_versions(6)
    publish(bucket, states[0])
    target = zeros_like(states[0])
    with ww.Follower(bucket, target, poll_seconds=0.01) as follower:
        follower.poll().apply()
        publish(bucket, *states[1:])
        assert first(follower).version == 1
        update = follower.poll().apply()
        assert (update.from_version, update.version) == (1, 5)
        assert_same(target, states[5])


def test_a_loop_goes_no_further_than_the_follower_may(bucket):
    states = some_versions(6)
    publish(bucket, states[0])
    target = zeros_like(states[0])
    with ww.Follower(bucket, target, poll_seconds=0.01) as follower:
        follower.poll().apply()
        publish(bucket, *states[1:])
        follower.pin(2)
        updates = iter(follower)
        assert [next(updates).apply().version for _ in range(2)] == [1, 2]
        assert follower.poll() is None
        follower.pin(4)
        assert next(updates).version == 3  # staged, and left
        assert follower.poll().apply().version == 4
        follower.pin(1, back=True)
        assert next(updates).apply().version == 1
        follower.pin(None)
        follower.poll().apply().undo()
        assert follower.version == 1
        follower.pin(None)
        assert next(updates).apply().version == 2


def test_everything_can_be_done_in_an_event_loop(bucket):
    state = small_state()
    target = zeros_like(state)

    async def everything():
        async with await ww.Publisher.open_async(bucket, state) as publisher:
            await publisher.publish(0).result_async()
        async with await ww.Follower.open_async(bucket, target, poll_seconds=0.01) as follower:
            (await follower.poll_async()).apply()
            assert await follower.poll_async() is None
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
    with ww.Follower(bucket, target, poll_seconds=0.01) as follower:
        follower.wait(version=0, timeout=30).apply()
        assert follower.wait(version=0) is None
        with pytest.raises(ww.WaitTimeoutError, match="version 7 did not come"):
            follower.wait(version=7, timeout=0.05)
        with pytest.raises(TimeoutError, match=r"version 7 did not come within 0\.05 seconds"):
            asyncio.run(follower.wait_async(version=7, timeout=0.05))


def test_an_event_loop_follows(bucket):
    state = small_state()
    publish(bucket, state, changed(state, 2))
    target = zeros_like(state)

    async def follow(follower):
        async for update in follower:
            update.apply()
            return update.version

    with ww.Follower(bucket, target, poll_seconds=0.01) as follower:
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
        assert follower.poll().version == 0
        publish(bucket, second)
        follower.poll().apply()
        follower.check()
        digest = follower.stats.digest
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
        assert not update.changes_layout
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
        with pytest.raises(ww.InvalidArgumentError, match="not known any more"):
            update.changes  # noqa: B018
    del follower, update
    assert changes["layer.bias"].new_bits.view(np.float16).tolist() == [1, 2]  # outlives both


def test_a_whole_load_and_another_layout_say_so(bucket):
    state = small_state()
    publish(bucket, state)
    with ww.Follower(bucket, zeros_like(state)) as follower:
        assert follower.poll().changes is None
    with ww.Follower(bucket, bucket.parent / "mirror") as follower:
        follower.poll()
        publish(bucket, {**state, "more": np.arange(3.0)})
        update = follower.poll()
        assert update.changes_layout
        (more,) = update.changes
        assert (more.name, more.positions.tolist()) == ("more", [])
        assert more.whole.view(np.float64).tolist() == [0, 1, 2]


def test_the_first_load_of_a_mirror_may_be_applied_like_any_update(bucket, tmp_path):
    publish(bucket, small_state())
    with ww.Follower(bucket, tmp_path / "mirror") as follower:
        update = follower.poll()
        assert update.seconds == 0.0 and follower.version == 0  # it is in place: nobody can be using it
        update.apply()
        with pytest.raises(ww.InvalidArgumentError):
            update.apply()


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
        fork_that_refuses(follower.poll, follower.check)
        weights["w"] += 1
        publisher.publish().result()
        follower.wait(timeout=60).apply()
    assert (target["w"] == weights["w"]).all()
"""
    ran = run_script(tmp_path, REFUSED_IN_A_FORK + script)
    assert ran.returncode == 0, ran.stderr
