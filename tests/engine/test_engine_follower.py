"""What the task in the API server decides: which versions, when, and in what order. The run, its mirror and the
follower are real; the engine only notes what it is asked for. Whether one does it exactly is for tests with servers."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import weightwire as ww
from weightwire import _core
from weightwire.integrations._metrics import Metrics
from weightwire.integrations._settings import EngineSettings
from weightwire.integrations.vllm import _status as status_module
from weightwire.integrations.vllm._engine import UpdateFailed
from weightwire.integrations.vllm._engine_follower import EngineFollower
from weightwire.integrations.vllm._mirror import read_held
from weightwire.integrations.vllm._parameter_map import UpdateRefused, WeightsDiffer

WEIGHTS = 1000


@pytest.fixture(scope="module")
def metrics():
    return Metrics()


@pytest.fixture
def run(tmp_path):
    run = SimpleNamespace(bucket=tmp_path / "bucket", mirror=tmp_path / "mirror")
    state = {"w": np.random.default_rng(0).standard_normal(WEIGHTS).astype(np.float32), "norm": np.ones(8, np.float32)}
    publisher = ww.Publisher(run.bucket)

    def publish(changed=3, name="w"):
        state[name][:changed] += 1
        ticket = publisher.publish(next(steps), model=state)
        ticket.result(60)
        return ticket.status.version

    steps = itertools.count()
    run.publish = publish
    run.publish()
    with ww.Follower(run.bucket, run.mirror) as follower:
        follower.poll().apply()
    yield run
    publisher.close()


class NotingEngine:
    """Answers as an engine would that holds what it should."""

    is_dead = died_by_itself = False

    def __init__(self):
        self.tasks, self.commits, self.opened, self.sleeping = [], [], [], False
        self.before = {}  # by task: what happens, or goes wrong, when it is asked for
        self.says = {"in_place": 1, "by_reload": 0}

    async def is_sleeping(self):
        return self.sleeping

    async def open(self, mirror, written):
        self.opened.append(written)
        lists = {key: [] for key in ("refused", "stale", "unread", "unproven")}
        return [{**lists, "mirror_is_newer": written is None, **self.says}]

    def _note(self, task):
        self.tasks.append(task)
        self.before.get(task, lambda: None)()

    async def check_can_change(self, tensors):
        self._note("check_can_change")

    async def prepare_change(self, path, version):
        self._note("prepare_change")

    async def prepare_mirror(self, held):
        self._note("prepare_mirror")

    async def compare(self, *, recheck_stale):
        self._note("compare")
        return await self.open("", 0.0) if recheck_stale else [{"elements": WEIGHTS}]

    async def commit(self, held):
        self.commits.append(held.version)
        return {"commit_seconds": 0.001, "write_seconds": 0.001, "elements": 1}

    async def label(self, version):
        pass


@pytest.fixture
def follow(run, metrics, monkeypatch):
    """Has a task start, and calls a coroutine with it and its engine. Steps are taken by hand."""
    monkeypatch.setattr(status_module, "Metrics", lambda: metrics)

    async def no_steps(self):
        pass

    monkeypatch.setattr(EngineFollower, "_run", no_steps)

    def call(coroutine, *, engine=None, served=True, **options):
        engine = engine or NotingEngine()

        async def main():
            settings = EngineSettings.from_environment({"WEIGHTWIRE_RUN": str(run.bucket)})
            settings = dataclasses.replace(settings, **options)
            follower = EngineFollower(engine, settings, run.mirror, served=served)

            async def step():
                try:
                    await follower._step()
                finally:
                    follower._update_lag()
                return follower.status

            follower.step = step
            try:
                await follower.start()
                return await coroutine(follower, engine)
            finally:
                await follower._release_lease()

        return asyncio.run(main())

    return call


def fails(error):
    def fail():
        raise error

    return fail


def test_repeated_failures_of_updates_have_growing_pauses(follow):
    async def pauses(follower, engine):
        failed = [follower._pause_after(UpdateFailed("the caches could not be reset")) for _ in range(9)]
        return (
            failed,
            follower._pause_after(ww.UnavailableError("the bucket")),
            follower._pause_after(UpdateFailed("")),
        )

    failed, other, after = follow(pauses)
    assert failed == sorted(failed) and failed[0] == other == after == 2.0 and failed[-1] == 120.0


# --- which versions, and when ---


def test_several_versions_are_one_update(run, follow):
    async def steps_taken(follower, engine):
        for _ in range(3):
            run.publish()
        status = await follower.step()
        assert engine.commits == [3]
        assert (status["version"], status["newest_version"], status["lag_versions"]) == (3, 3, 0)

    follow(steps_taken)


def test_with_every_version_the_lag_counts_the_whole_run(run, follow):
    async def steps_taken(follower, engine):
        for _ in range(3):
            run.publish()
        for version in (1, 2, 3):
            status = await follower.step()
            assert (status["version"], status["newest_version"], status["lag_versions"]) == (version, 3, 3 - version)
        assert (await follower.step())["lag_seconds"] == 0
        assert engine.commits == [1, 2, 3]

    follow(steps_taken, every_version=True)


def test_a_lag_up_to_max_lag_is_allowed(run, follow):
    async def steps_taken(follower, engine):
        for lag in (1, 2):
            run.publish()
            status = await follower.step()
            assert (status["version"], status["lag_versions"]) == (0, lag)
            assert status["lag_seconds"] > 0
        run.publish()
        assert (await follower.step())["version"] == 3
        assert engine.commits == [3]

    follow(steps_taken, max_lag=2)


def test_updates_keep_the_minimum_interval(run, follow):
    async def steps_taken(follower, engine):
        run.publish()
        assert (await follower.step())["version"] == 1
        run.publish()
        status = await follower.step()
        assert (status["version"], status["lag_versions"]) == (1, 1)
        follower._committed_at -= 1000
        assert (await follower.step())["version"] == 2

    follow(steps_taken, min_update_interval=1000.0)


def test_a_sleeping_engine_is_not_updated(run, follow):
    async def steps_taken(follower, engine):
        run.publish()
        engine.sleeping = True
        assert (await follower.step())["newest_version"] is None
        engine.sleeping = False
        assert (await follower.step())["version"] == 1

    follow(steps_taken)


# --- the lease, and the limits of the follower ---


def leases_of(run):
    return [json.loads(file.read_text()) for file in (run.bucket / "leases").rglob("*.json")]


def test_the_lease_shows_the_name_of_the_server(run, follow):
    async def steps_taken(follower, engine):
        run.publish()
        status = await follower.step()
        assert status["has_lease"] and [lease["name"] for lease in leases_of(run)] == ["here"]

    follow(steps_taken, name="here")


def test_the_lease_can_be_left_out(run, follow):
    async def steps_taken(follower, engine):
        run.publish()
        status = await follower.step()
        assert (status["version"], status["has_lease"]) == (1, False) and leases_of(run) == []

    follow(steps_taken, lease=False)


def test_the_follower_gets_the_threads_and_the_rate_limit(run, follow, monkeypatch):
    given = {}
    core = _core.Follower

    def noting(url, target, options):
        given.update(options)
        return core(url, target, options)

    monkeypatch.setattr(_core, "Follower", noting)

    async def steps_taken(follower, engine):
        run.publish()
        assert (await follower.step())["version"] == 1

    follow(steps_taken, threads=3, max_bytes_per_second=1 << 30)
    assert 3 in given.values() and 1 << 30 in given.values()


# --- pinning ---


def test_a_pinned_engine_goes_to_its_version_and_still_tells_the_lag(run, follow):
    async def steps_taken(follower, engine):
        follower.pin(0)
        run.publish(), run.publish()
        status = await follower.step()
        assert (status["version"], status["newest_version"], status["lag_versions"]) == (0, 2, 2)
        assert status["pinned_version"] == 0
        follower.pin(1)
        assert (await follower.step())["version"] == 1
        follower.unpin()
        status = await follower.step()
        assert (status["version"], status["pinned_version"]) == (2, None)
        follower.pin(0)
        status = await follower.step()
        assert (status["version"], status["lag_versions"]) == (0, 2)

    follow(steps_taken)


def test_a_pin_without_a_version_keeps_the_one_that_is_held(run, follow):
    async def steps_taken(follower, engine):
        run.publish()
        follower.pin(None)
        status = await follower.step()
        assert (status["version"], status["pinned_version"]) == (0, 0)

    follow(steps_taken)


@pytest.mark.parametrize("late", [False, True])
def test_an_update_under_way_does_not_pass_a_pin(run, follow, monkeypatch, late):
    """The user pins while workers prepare, or only when the mirror has moved."""

    async def steps_taken(follower, engine):
        run.publish()
        if late:
            move = follower._move_mirror

            async def move_then_pin(update):
                await move(update)
                follower.pin(0)

            follower._move_mirror = move_then_pin
        else:
            engine.before["prepare_change"] = lambda: follower.pin(0)
        for _ in range(2):
            status = await follower.step()
            assert (status["version"], status["newest_version"], status["lag_versions"]) == (0, 1, 1)
            assert read_held(run.mirror).version == 0
        assert engine.commits == []
        follower.unpin()
        engine.before.clear()
        if late:
            follower._move_mirror = move
        assert (await follower.step())["version"] == 1

    follow(steps_taken)


def test_an_engine_does_not_follow_its_mirror_past_a_pin(run, follow):
    async def steps_taken(follower, engine):
        run.publish()
        await follower.step()
        run.publish()
        follower._follower.poll().apply()
        follower.pin(1)
        for _ in range(2):
            assert (await follower.step())["version"] == 1
        assert engine.commits == [1]
        assert read_held(run.mirror).version == 1
        follower.unpin()
        assert (await follower.step())["version"] == 2

    follow(steps_taken)


@pytest.mark.parametrize("pin", [0, 1])
def test_an_engine_that_is_pinned_from_the_start_never_holds_another_version(run, follow, pin):
    """The mirror is moved there before the engine is compared with it."""
    run.publish(), run.publish()

    async def steps_taken(follower, engine):
        assert (follower.status["version"], follower.status["pinned_version"]) == (pin, pin)
        assert read_held(run.mirror).version == pin
        assert engine.opened[0] is None or pin == 0  # the engine was loaded from what the mirror held before
        assert (await follower.step())["version"] == pin
        follower.unpin()
        assert (await follower.step())["version"] == 2

    follow(steps_taken, pin=pin)


# --- how ---


def test_a_small_change_is_prepared_before_the_mirror_moves_and_a_large_one_compared_after(run, follow):
    async def steps_taken(follower, engine):
        moved = []
        for task in ("prepare_change", "check_can_change", "prepare_mirror"):
            engine.before[task] = lambda: moved.append(read_held(run.mirror).version)
        run.publish(8, "norm")  # all of a tensor, but little of the model
        await follower.step()
        run.publish(WEIGHTS // 10)
        await follower.step()
        assert [task for task in engine.tasks if task != "compare"] == [
            "prepare_change",
            "check_can_change",
            "prepare_mirror",
        ]
        assert moved == [0, 1, 2]
        assert engine.commits == [1, 2]

    follow(steps_taken)


def test_a_change_that_cannot_be_prepared_is_made_by_comparing(run, follow):
    async def steps_taken(follower, engine):
        engine.before["prepare_change"] = fails(UpdateFailed("no memory"))
        run.publish()
        assert (await follower.step())["version"] == 1
        assert engine.tasks[:3] == ["prepare_change", "check_can_change", "prepare_mirror"]

    follow(steps_taken)


def test_parameters_that_cannot_be_compared_are_updated_by_the_change_only(run, follow):
    async def steps_taken(follower, engine):
        run.publish(WEIGHTS)
        assert (await follower.step())["version"] == 1
        assert engine.tasks == ["prepare_change"]
        engine.before["prepare_change"] = fails(UpdateFailed("no memory"))
        run.publish()
        with pytest.raises(UpdateFailed):
            await follower.step()
        assert read_held(run.mirror).version == 1

    engine = NotingEngine()
    engine.says["unproven"] = ["a"]
    follow(steps_taken, engine=engine, verify="commit")


@pytest.mark.parametrize(("task", "changed"), [("prepare_change", 3), ("check_can_change", WEIGHTS)])
def test_a_refused_update_moves_nothing(run, follow, task, changed):
    async def steps_taken(follower, engine):
        engine.before[task] = fails(UpdateRefused("not exactly"))
        run.publish(changed)
        with pytest.raises(UpdateRefused):
            await follower.step()
        assert (follower.status["version"], follower.status["lag_versions"]) == (0, 1)
        assert read_held(run.mirror).version == 0

    follow(steps_taken)


# --- what is checked ---


def damage(mirror):
    (file,) = Path(mirror).glob("*.safetensors")
    with file.open("r+b") as opened:
        opened.seek(-1, 2)
        last = opened.read(1)
        opened.seek(-1, 2)
        opened.write(bytes([last[0] ^ 1]))


def test_everything_is_compared_and_digested_after_an_update(run, follow):
    async def steps_taken(follower, engine):
        run.publish()
        await follower.step()
        assert engine.tasks == ["prepare_change", "compare"]
        assert follower.status["last_verify"]["version"] == 1
        run.publish()
        damage(run.mirror)
        with pytest.raises(WeightsDiffer, match="the mirror is damaged"):
            await follower.step()

    follow(steps_taken, verify_interval=0.0)


def test_full_checks_keep_a_multiple_of_their_duration_apart(run, follow):
    async def steps_taken(follower, engine):
        run.publish()
        await follower.step()
        assert engine.tasks == ["prepare_change", "compare"]
        follower._verify_seconds = 60.0  # as if it had taken that long
        run.publish()
        await follower.step()
        assert engine.tasks == ["prepare_change", "compare", "prepare_change"]

    follow(steps_taken, verify_interval=1e-9)


def test_full_check_can_be_disabled(run, follow):
    async def steps_taken(follower, engine):
        run.publish()
        await follower.step()
        assert engine.tasks == ["prepare_change"]

    follow(steps_taken, verify_interval=0.0, verify="commit")


def test_a_damaged_mirror_is_reloaded_before_the_server_starts(run, follow):
    sound = next(run.mirror.glob("*.safetensors")).read_bytes()

    async def steps_taken(follower, engine):
        assert engine.opened == [None]  # the engine was loaded from something else
        assert next(run.mirror.glob("*.safetensors")).read_bytes() == sound
        assert follower.status["version"] == 0

    damage(run.mirror)
    follow(steps_taken)


def test_a_damaged_mirror_without_a_bucket_is_not_served(run, follow):
    async def steps_taken(follower, engine):
        raise AssertionError

    damage(run.mirror)
    run.bucket.rename(run.bucket.with_name("away"))
    with pytest.raises(ww.WeightwireError):
        follow(steps_taken)


def test_an_intact_mirror_is_served_without_its_bucket(run, follow):
    async def steps_taken(follower, engine):
        assert engine.opened[0] is not None
        assert follower.status["version"] == 0

    run.bucket.rename(run.bucket.with_name("away"))
    follow(steps_taken)


def test_a_mirror_recovers_from_a_crash_without_its_bucket(run, follow):
    """The machine went down before the last update was on the disk."""
    run.publish()
    state = run.mirror / ".weightwire" / "state.json"
    with ww.Follower(run.bucket, run.mirror) as follower:
        follower.poll().apply()
        said = json.loads(state.read_text())
    assert said["unsynced"] is not None
    state.write_text(json.dumps({**said, "unsynced": "an earlier boot"}))
    assert read_held(run.mirror) is None

    async def steps_taken(follower, engine):
        assert engine.opened == [None]
        assert follower.status["version"] == 1

    run.bucket.rename(run.bucket.with_name("away"))
    follow(steps_taken)


@pytest.mark.parametrize(
    ("says", "served", "tasks"),
    [
        ({}, True, []),
        ({}, False, []),
        ({"unread": ["a"]}, True, []),
        ({"unread": ["a"]}, False, ["prepare_mirror", "compare"]),
        ({"stale": ["a"]}, True, ["prepare_mirror", "compare"]),
        ({"unproven": ["a"]}, True, []),
        ({"unproven": ["a"]}, False, None),
    ],
)
def test_the_engine_is_brought_to_another_mirror_than_it_was_loaded_from(follow, says, served, tasks):
    async def steps_taken(follower, engine):
        assert engine.tasks == tasks
        assert follower.status["not_compared"] == says.get("unproven", [])

    engine = NotingEngine()
    engine.says.update(says)
    refusal = pytest.raises(UpdateRefused, match="'a' can neither be compared with it nor loaded again")
    with refusal if tasks is None else contextlib.nullcontext():
        follow(steps_taken, engine=engine, served=served)


def test_the_status_says_if_every_update_will_be_refused(follow):
    async def steps_taken(follower, engine):
        return follower.status

    engine = NotingEngine()
    engine.says.update(in_place=0, refused=["because"])
    status = follow(steps_taken, engine=engine)
    assert (status["can_update"], status["refused"]) == (False, ["because"])
    assert follow(steps_taken)["can_update"]
