"""Publishing from Python: what goes in comes out, whatever the arrays are made of."""

import asyncio
import signal
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest
import weightwire as ww
from conftest import REFUSED_IN_A_FORK, assert_same, assert_same_tensors, publish, run_script, small_state


def test_every_version_comes_back_bit_for_bit(bucket):
    states = [small_state(0)]
    for step in range(1, 5):
        state = {name: array.copy() for name, array in states[-1].items()}
        state["embed.weight"][step] *= 1.0001
        state["layer.counts"][0, 0] += 1
        states.append(state)
    tickets = publish(bucket, *states)
    assert [ticket.version for ticket in tickets] == [0, 1, 2, 3, 4]
    for version, state in enumerate(states):
        assert_same(ww.load(bucket, version=version), state)
    assert_same(ww.load(bucket), states[-1])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_short_floats_cross_without_a_change(bucket, name):
    dtype = getattr(ml_dtypes, name)
    every_pattern = np.arange(256, dtype=np.uint8)
    bits = every_pattern if np.dtype(dtype).itemsize == 1 else np.arange(65536, dtype=np.uint16)
    state = {"w": bits.view(dtype).reshape(16, -1)}
    publish(bucket, state)
    loaded = ww.load(bucket)["w"]
    assert loaded.dtype == state["w"].dtype
    assert loaded.tobytes() == state["w"].tobytes()


def test_views_that_are_not_contiguous_are_published_as_they_look(bucket):
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    publish(bucket, {"transposed": whole.T, "strided": whole[::2, 1::3], "reversed": whole[::-1]})
    loaded = ww.load(bucket)
    np.testing.assert_array_equal(loaded["transposed"], whole.T)
    np.testing.assert_array_equal(loaded["strided"], whole[::2, 1::3])
    np.testing.assert_array_equal(loaded["reversed"], whole[::-1])


def test_fields_of_a_structured_array_are_published_as_they_look(bucket):
    records = np.zeros((2, 5), [("a", "f4"), ("b", "f4"), ("c", "u1")])  # nine bytes each
    for number, name in enumerate(records.dtype.names):
        records[name] = np.arange(1 + number, 11 + number).reshape(2, 5)
    fields = {name: records[name] for name in records.dtype.names}
    fields["transposed"] = records["b"].T
    publish(bucket, fields)
    assert_same(ww.load(bucket), fields)
    publish(bucket, fields, dtype="bfloat16")
    rounded = {n: f.astype(ml_dtypes.bfloat16) if f.dtype == np.float32 else f for n, f in fields.items()}
    assert_same(ww.load(bucket), rounded)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_an_array_at_any_address_is_published_as_it_looks(bucket, dtype):
    array = np.zeros(41, np.uint8)[1:].view(np.float32).reshape(2, 5)
    array[:] = np.arange(10).reshape(2, 5)
    assert not array.flags.aligned
    publish(bucket, {"w": array, "t": array.T}, dtype=dtype)
    loaded = ww.load(bucket)
    np.testing.assert_array_equal(loaded["w"].astype(np.float32), array)
    np.testing.assert_array_equal(loaded["t"].astype(np.float32), array.T)


def test_what_is_not_an_array_is_refused_by_name(bucket):
    with ww.Publisher(bucket) as publisher:
        with pytest.raises(ww.InvalidArgumentError, match="'oops' is a object"):
            publisher.publish(0, {"oops": object()})
        with pytest.raises(ww.InvalidArgumentError, match=r"'big'.*which no checkpoint can hold"):
            publisher.publish(0, {"big": np.zeros(3, ">f4")})
        with pytest.raises(ww.InvalidArgumentError, match="made without a model"):
            publisher.publish(0)


def test_the_same_state_and_step_is_published_once(bucket):
    state = small_state()
    with ww.Publisher(bucket, state) as publisher:
        first = publisher.publish(3)
        first.wait()
        again = publisher.publish(3)
        other = publisher.publish(4)
    assert first.stats.stage == other.stats.stage == "committed"
    assert again.stats.stage == "already_published"
    assert (other.version, other.stats.changed) == (1, 0)


def test_a_ticket_tells_what_became_of_it(bucket):
    state = small_state()
    with ww.Publisher(bucket, state) as publisher:
        publisher.publish(0).wait()
        state["embed.weight"][0, 0] += 1
        ticket = publisher.publish(1)
        stats = ticket.wait(timeout=60)
        assert publisher.stats.committed == 1
        assert publisher.stats.bytes_sent > stats.bytes
    assert (stats.stage, stats.version, stats.step, stats.changed) == ("committed", 1, 1, 1)
    assert stats.bytes > 0
    assert stats.seconds["committed"] >= stats.seconds["queued"] == 0
    assert ticket.done and stats.error is None
    assert "version 1" in repr(ticket)


def test_waiting_for_a_ticket_does_not_block_an_event_loop(bucket, tmp_path):
    state = small_state()

    async def wait_for_the_bucket(ticket):
        waiting = asyncio.create_task(ticket.wait_async(60))
        await asyncio.sleep(0)
        (tmp_path / "away").rename(bucket)
        return await waiting

    with ww.Publisher(bucket, state) as publisher:
        publisher.publish(0).wait()
        publisher.drain()
        bucket.rename(tmp_path / "away")
        state["embed.weight"][0] += 1
        stats = asyncio.run(wait_for_the_bucket(publisher.publish(1)))
    assert stats.stage == "committed"


def test_a_wait_that_an_event_loop_gives_up_ends(bucket):
    """The loop ends only when no thread waits any more."""

    async def give_up(wait):
        task = asyncio.create_task(wait)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    publisher = ww.Publisher(bucket, {"w": np.zeros(10_000_000, np.uint8)}, bytes_per_second=1000)
    ticket = publisher.publish(0)
    asyncio.run(give_up(ticket.wait_async()))
    asyncio.run(give_up(publisher.drain_async()))
    with pytest.raises(ww.WaitTimeoutError, match=r"after 0\.01 seconds"):
        asyncio.run(ticket.wait_async(0.01))
    with pytest.raises(ww.WaitTimeoutError, match=r"after 0\.01 s"):
        asyncio.run(publisher.drain_async(0.01))
    publisher.close()


def test_an_event_loop_drains(bucket):
    async def run(publisher):
        publisher.publish(0)
        await publisher.drain_async()
        return publisher.stats.versions_waiting

    with ww.Publisher(bucket, small_state()) as publisher:
        assert asyncio.run(run(publisher)) == 0


def test_a_publisher_that_nobody_closes_says_what_is_lost(tmp_path):
    script = """
import numpy as np, weightwire as ww
publisher = ww.Publisher("bucket", {"w": np.zeros(10_000_000, np.uint8)}, bytes_per_second=1000)
publisher.publish(0)
"""
    ran = run_script(tmp_path, script)
    assert "was not closed, and 1 of its versions were not sent; they are lost" in ran.stderr
    ran = run_script(tmp_path, script.replace("bytes_per_second", 'state="state", bytes_per_second'))
    assert "the next one with this state= sends them" in ran.stderr
    ran = run_script(tmp_path, script.replace("10_000_000", "10").replace("publish(0)", "publish(0).wait()"))
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_ticket_keeps_its_publisher_at_work(bucket):
    stats = ww.Publisher(bucket, small_state()).publish(0).wait()
    assert stats.stage == "committed"


def test_the_error_of_the_body_is_the_one_that_is_seen(bucket):
    with pytest.raises(KeyError), ww.Publisher(bucket, small_state()) as publisher:
        publisher.close()
        raise KeyError
    with ww.Publisher(bucket, small_state()) as publisher:
        publisher.publish(0).wait()
        publisher.close()  # nothing is left to wait for


def test_a_fork_that_ends_leaves_its_parent_s_publisher_as_it_is(tmp_path):
    script = """
class Tokenizer:
    def save_pretrained(self, directory):
        (directory / "tokenizer.json").write_text("{}")
weights = {"w": np.zeros(10, np.float32)}
with ww.Publisher("bucket", weights, tokenizer=Tokenizer(), anchor_every=1) as publisher:
    publisher.publish()
    publisher.drain()
    fork_that_refuses(publisher.publish, publisher.drain)
    weights["w"] += 1
    publisher.publish()
"""
    ran = run_script(tmp_path, REFUSED_IN_A_FORK + script)
    assert ran.returncode == 0, ran.stderr
    assert len(list((tmp_path / "bucket" / "anchors").rglob("tokenizer.json"))) == 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"spool_versions": 0}, "spool_versions is a whole number of at least 1, not 0"),
        ({"anchor_every": -1}, "anchor_every is a whole number of at least 0, not -1"),
        ({"anchor_percent": 0.5}, "anchor_percent is a whole number, not a float"),
        ({"threads": "2"}, "threads is a whole number, not a str"),
        ({"rank_timeout": -1}, "rank_timeout is a number of seconds above 0"),
        ({"dtype": "int8"}, "cannot be published as int8: give a floating-point type"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(bucket, options, why):
    with pytest.raises(ww.InvalidArgumentError, match=why):
        ww.Publisher(bucket, small_state(), **options)
    assert not bucket.exists()


def test_a_step_that_cannot_be_is_refused_and_not_counted(bucket):
    state = small_state()
    with ww.Publisher(bucket, state) as publisher:
        for step in (-1, "x", 1.5, 2**64):
            with pytest.raises(ww.InvalidArgumentError, match="step is a whole number"):
                publisher.publish(step)
        with pytest.raises(ww.InvalidArgumentError, match="names of tensors are strings, and 3 is a int"):
            publisher.publish(7, {3: np.zeros(3)})
        assert publisher.publish().stats.step == 0
        assert publisher.publish(np.int64(5)).stats.step == 5


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), "bfloat16", "BF16"])
def test_a_type_may_be_given_in_any_spelling(bucket, dtype):
    array = np.arange(5, dtype=np.float32)
    publish(bucket, {"w": array}, dtype=dtype)
    assert_same(ww.load(bucket), {"w": array.astype(ml_dtypes.bfloat16)})


def test_numpy_s_own_types_are_known(bucket):
    publish(bucket, {"w": np.arange(5, dtype=np.float32)}, dtype=np.float16)
    assert_same(ww.load(bucket), {"w": np.arange(5, dtype=np.float16)})


def test_one_pattern_may_be_given_for_what_fp8_keeps():
    assert ww.Fp8(keep="lm_head") == ww.Fp8(keep=("lm_head",)) == ww.Fp8(keep=["lm_head"])
    with pytest.raises(ww.InvalidArgumentError, match="no regular expression"):
        ww.Fp8(keep="(")


def test_a_restarted_publisher_goes_on_with_the_chain(bucket, tmp_path):
    state = small_state()
    publish(bucket, state, state=tmp_path / "state", base="file")
    state["embed.weight"][3] = 0
    (ticket,) = publish(bucket, state, state=tmp_path / "state", base="file")
    # publish() counts its steps from 0 again; only the state is new.
    assert (ticket.version, ticket.stats.changed) == (1, 16)
    state["embed.weight"][4] = 0
    (ticket,) = publish(bucket, state)  # without what the first two have left: rebuilt from the bucket
    assert (ticket.version, ticket.stats.changed) == (2, 16)
    assert_same(ww.load(bucket), state)


def test_a_restart_that_may_not_fetch_sends_the_whole_model(bucket):
    state = small_state()
    publish(bucket, state)
    state["embed.weight"][3] = 0
    with ww.Publisher(bucket, rebuild=False) as publisher:
        ticket = publisher.publish(1, state)
        ticket.wait()
        # Without a delta, and so all of it counts as changed.
        assert (ticket.version, ticket.stats.bytes) == (1, 0)
        assert ticket.stats.changed == sum(array.size for array in state.values())
        state["embed.weight"][4] = 0
        assert publisher.publish(2, state).wait().changed == 16
    assert_same(ww.load(bucket), state)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("held", [0, 1, 3])
def test_a_restart_from_any_checkpoint_goes_on_with_the_chain(bucket, tmp_path, held, kept):
    """A training that was resumed from an older checkpoint, or from a newer one than was published."""
    states = [small_state(seed) for seed in range(4)]
    options = {"state": tmp_path / "state", "base": "file"} if kept else {}
    publish(bucket, *states[:3], **options)
    model = states[held]
    with ww.Publisher(bucket, model, **options) as publisher:
        assert publisher.publish(held).version == 3
        model["embed.weight"][3] += 1
        ticket = publisher.publish(held + 1)
        assert (ticket.version, ticket.stats.changed) == (4, 16)
    assert_same(ww.load(bucket), model)
    assert_same(ww.load(bucket, 2), states[2])


def test_ctrl_c_ends_a_wait(tmp_path):
    script = """
import numpy as np, weightwire as ww
publisher = ww.Publisher("bucket", {"w": np.zeros(10_000_000, np.uint8)}, bytes_per_second=1000)
ticket = publisher.publish(0)
print("waiting", flush=True)
ticket.wait()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in error


class OnlyDlpack:
    """An array of a library that numpy knows nothing of."""

    def __init__(self, tensor):
        self._tensor = tensor
        self.shape = tuple(tensor.shape)

    def __dlpack__(self, **options):
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool", "uint8", "float8_e4m3fn"])
def test_dlpack_is_enough(bucket, dtype):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(-60, 60).reshape(10, 12).to(getattr(torch, dtype))
    try:
        tensor.__dlpack__()
    except BufferError:
        pytest.skip(f"torch does not export {dtype} by DLPack")
    publish(bucket, {"w": OnlyDlpack(tensor), "t": OnlyDlpack(tensor.t())})
    assert_same_tensors(ww.load(bucket, framework="torch"), {"w": tensor, "t": tensor.t().contiguous()})


def test_dlpack_s_floats_are_rounded_too(bucket):
    torch = pytest.importorskip("torch")
    tensor = torch.randn(30, 40)
    publish(bucket, {"w": OnlyDlpack(tensor)}, dtype="bfloat16")
    assert_same_tensors(ww.load(bucket, framework="torch"), {"w": tensor.to(torch.bfloat16)})


def test_the_second_of_two_publishers_is_told(bucket):
    state = small_state()
    with ww.Publisher(bucket, state) as one:
        other = ww.Publisher(bucket, state)
        one.publish(0).wait()
        state["scale"][()] = 5
        with pytest.raises(ww.ConflictError):
            other.publish(1).wait()
        assert other.stats.stopped
        with pytest.raises(ww.ConflictError):
            other.drain()
        other.close()
        one.publish(2).wait()


def test_arrays_that_are_the_same_memory_are_sent_once(bucket):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    state = {"embed": array, "again": array[:], "other": array[::-1], "empty": array[:0], "nothing": array[:0]}
    publish(bucket, state)
    loaded = ww.load(bucket)
    assert_same(loaded, state)
    assert loaded["again"] is loaded["embed"]
    assert loaded["other"] is not loaded["embed"] and loaded["empty"] is not loaded["nothing"]
    target = {name: np.zeros_like(part) for name, part in state.items()}
    with ww.Follower(bucket, target) as follower:
        follower.poll().apply()
    assert_same(target, state)


def test_leaving_a_publisher_whose_versions_were_lost_is_an_error(bucket):
    state = small_state()
    with ww.Publisher(bucket, state) as one:
        one.publish(0).wait()
        with pytest.raises(ww.ConflictError), ww.Publisher(bucket, state) as other:
            state["scale"][()] = 5
            one.publish(1).wait()
            state["scale"][()] = 6
            other.publish(2)  # never gets into the run, and nobody looks at the ticket


@pytest.mark.parametrize("include_code", [False, True])
def test_code_is_included_only_if_asked_for(bucket, tmp_path, include_code):
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "config.json").write_text("{}")
    (extra / "modeling.py").write_text("import os")
    with ww.Publisher(bucket, small_state(), extra_files=extra, include_code=include_code) as publisher:
        publisher.publish(0)
    names = {path.name for path in (tmp_path / "bucket/anchors").rglob("*") if path.is_file()}
    assert "config.json" in names and ("modeling.py" in names) == include_code


def test_threads_that_publish_at_once_take_turns(bucket):
    states = [{"w": np.full(200_000, n, np.float32)} for n in range(4)]
    with ww.Publisher(bucket) as publisher:
        publisher.publish(0, states[0])
        threads = [threading.Thread(target=publisher.publish, args=(n, states[n])) for n in range(1, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen = {int(ww.load(bucket, version=version)["w"][0]) for version in range(4)}
    assert seen == {0, 1, 2, 3}


def test_a_closed_publisher_ends_every_wait(bucket):
    publisher = ww.Publisher(bucket, {"w": np.zeros(10_000_000, np.uint8)}, bytes_per_second=1000)
    ticket = publisher.publish(0)
    publisher.close()
    with pytest.raises(ww.UnavailableError, match="closed"):
        ticket.wait()
    assert ticket.stats.stage == "failed"
    assert publisher.stats.committed is None


def test_a_closed_publisher_gives_its_state_directory_back(bucket, tmp_path):
    state = small_state()
    with ww.Publisher(bucket, state, state=tmp_path / "state") as publisher:
        ticket = publisher.publish(0)
    with ww.Publisher(bucket, state, state=tmp_path / "state") as again:
        again.publish(0).wait()
    assert ticket.stats.stage == "committed"


CTRL_C = {
    # A port that nobody listens on: it is tried again for half a minute.
    "while it opens": """
os.environ.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_ENDPOINT_URL="http://127.0.0.1:9")
print("waiting", flush=True)
ww.Publisher("s3://bucket/run", {"w": np.zeros(3)})
""",
    "while Python makes the weights": """
import weightwire._core as core
class Weights:
    def __call__(self, firsts, count, out):
        print("waiting", flush=True)
        while True:
            pass
publisher = ww.Publisher("bucket", threads=1)
reader = core.calling_reader(Weights(), "F32")
publisher._session.core.publish([("w", "F32", (4,), reader)], {}, 0, None)
""",
}


@pytest.mark.parametrize("where", CTRL_C)
def test_ctrl_c_is_what_it_says(tmp_path, where):
    script = "import os\nimport numpy as np, weightwire as ww\n" + CTRL_C[where]
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in error.splitlines() and "Error:" not in error


def test_tensors_may_come_and_go(bucket):
    state = small_state()
    later = {**state, "new": np.ones(3, np.float32)}
    del later["layer.bias"]
    later["scale"] = np.zeros(2, np.float32)  # another type and shape
    publish(bucket, state, later)
    assert_same(ww.load(bucket), later)


def test_a_full_spool_skips_when_asked_to(bucket):
    state = {"w": np.zeros(200_000, np.float32)}
    random = np.random.default_rng(0)
    # A line so slow that nothing is sent before all are published.
    with ww.Publisher(bucket, state, when_full="skip", spool_versions=1, bytes_per_second=200_000) as publisher:
        tickets = []
        for step in range(4):
            state["w"][:] = random.standard_normal(len(state["w"]))
            tickets.append(publisher.publish(step))
        publisher.drain()
        stages = [ticket.stats.stage for ticket in tickets]
        assert "skipped" in stages
        publisher.publish(9).wait()
    assert_same(ww.load(bucket), state)


def test_a_version_that_cannot_be_kept_does_not_go_by_without_a_word(tmp_path):
    script = """
import logging, resource, signal, sys
import numpy as np
import weightwire as ww
logging.basicConfig(stream=sys.stdout)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
bucket, state = sys.argv[1:]
weights = {"a": np.zeros(100_000, np.float32)}
publisher = ww.Publisher(bucket, weights, state=state)
publisher.publish(0).wait()
publisher.drain()
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, unlimited[1]))  # no file may be larger
for step in (1, 2):
    weights["a"] += np.random.default_rng(step).random(100_000, np.float32)
    publisher.publish(step)
    try:
        publisher.drain()
    except ww.LocalIOError as error:
        print("raised:", error)
publisher.drain()  # was said
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
publisher.publish(3)
publisher.drain()
publisher.close()
"""
    told = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "bucket", tmp_path / "state"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("raised: ") == 2
    assert "step 1 was not published" in told.stdout
    rng = [np.random.default_rng(step).random(100_000, np.float32) for step in (1, 2)]
    assert np.array_equal(ww.load(tmp_path / "bucket")["a"], rng[0] + rng[1])


def test_other_threads_run_while_a_publisher_waits(bucket, tmp_path):
    me = threading.get_ident()

    def bring_the_bucket_back():
        while sys._current_frames()[me].f_code.co_name != "wait":
            time.sleep(0)  # lets others run
        (tmp_path / "away").rename(bucket)

    state = {"w": np.zeros(50_000, np.float32)}
    with ww.Publisher(bucket, state) as publisher:
        publisher.publish(0).wait()
        publisher.drain()
        bucket.rename(tmp_path / "away")
        state["w"] += 1
        ticket = publisher.publish(1)
        thread = threading.Thread(target=bring_the_bucket_back)
        thread.start()
        assert ticket.wait(60).stage == "committed"
        thread.join()


def test_a_run_that_cannot_be_is_said_in_one_sentence(tmp_path):
    with pytest.raises(ww.InvalidArgumentError, match="ftp://"):
        ww.Publisher("ftp://nowhere/run", {})
    with pytest.raises(ww.NotFoundError):
        ww.load(tmp_path / "nothing")
    with pytest.raises(ww.InvalidArgumentError, match="state="):
        ww.Publisher(tmp_path / "bucket", {}, base="file")
