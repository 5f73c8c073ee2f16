"""Publishing from Python: what goes in comes out, whatever the arrays are made of."""

import asyncio
import inspect
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
        with pytest.raises(ww.InvalidArgumentError, match="'oops' is of the type object"):
            publisher.publish(0, model={"oops": object()})
        with pytest.raises(ww.InvalidArgumentError, match=r"'big'.*which no checkpoint can hold"):
            publisher.publish(0, model={"big": np.zeros(3, ">f4")})
        for value, kind in ((3, "int"), (0.5, "float"), ([1.0, 2.0], "list"), ("x", "str")):
            with pytest.raises(
                ww.InvalidArgumentError, match=f"'a' is of the type {kind}, which is not an array"
            ) as caught:
                publisher.publish(0, model={"a": value})
            assert caught.value.code == "invalid_argument"
        with pytest.raises(ww.InvalidArgumentError, match="made without one"):
            publisher.publish(0)


def test_the_same_state_and_step_is_published_once(bucket):
    state = small_state()
    with ww.Publisher(bucket, state) as publisher:
        first = publisher.publish(3)
        first.result()
        again = publisher.publish(3)
        other = publisher.publish(4)
    assert first.status.stage == other.status.stage == "committed"
    assert again.status.stage == "already_published"
    assert (other.version, other.status.changed_elements) == (1, 0)


def test_a_ticket_tells_what_became_of_it(bucket):
    state = small_state()
    with ww.Publisher(bucket, state) as publisher:
        publisher.publish(0).result()
        state["embed.weight"][0, 0] += 1
        ticket = publisher.publish(1)
        status = ticket.result(timeout=60)
        assert publisher.status.version == 1
        assert publisher.status.bytes_sent > status.delta_bytes
    assert (status.stage, status.version, status.step, status.changed_elements) == ("committed", 1, 1, 1)
    assert (ticket.version, ticket.step) == (1, 1)
    assert status.delta_bytes > 0 and status.anchor_bytes is None
    assert status.stage_seconds["committed"] >= status.stage_seconds["queued"] == 0
    assert ticket.done() and status.error is None and ticket.exception() is None
    assert asyncio.run(ticket.exception_async()) is None
    assert "version 1" in repr(ticket)


def test_waiting_for_a_ticket_does_not_block_an_event_loop(bucket, tmp_path):
    state = small_state()

    async def wait_for_the_bucket(ticket):
        waiting = asyncio.create_task(ticket.result_async(60))
        await asyncio.sleep(0)
        (tmp_path / "away").rename(bucket)
        return await waiting

    with ww.Publisher(bucket, state) as publisher:
        publisher.publish(0).result()
        publisher.flush()
        bucket.rename(tmp_path / "away")
        state["embed.weight"][0] += 1
        status = asyncio.run(wait_for_the_bucket(publisher.publish(1)))
    assert status.stage == "committed"


def test_a_wait_that_an_event_loop_gives_up_ends(bucket):
    """The loop ends only when no thread waits any more."""

    async def give_up(wait):
        task = asyncio.create_task(wait)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    publisher = ww.Publisher(bucket, {"w": np.zeros(10_000_000, np.uint8)}, max_bytes_per_second=1000)
    ticket = publisher.publish(0)
    asyncio.run(give_up(ticket.result_async()))
    asyncio.run(give_up(publisher.flush_async()))
    with pytest.raises(ww.WaitTimeoutError, match=r"after 0\.01 seconds"):
        asyncio.run(ticket.result_async(0.01))
    with pytest.raises(ww.WaitTimeoutError, match=r"after 0\.01 s"):
        asyncio.run(publisher.flush_async(0.01))
    publisher.close(discard=True)


def test_an_event_loop_drains(bucket):
    async def run(publisher):
        publisher.publish(0)
        await publisher.flush_async()
        return publisher.status.pending_versions

    with ww.Publisher(bucket, small_state()) as publisher:
        assert asyncio.run(run(publisher)) == 0


def test_a_publisher_that_nobody_closes_says_what_is_lost(tmp_path):
    script = """
import numpy as np, weightwire as ww
options = dict(exit_timeout=0.01, max_bytes_per_second=1000)
publisher = ww.Publisher("bucket", {"w": np.zeros(10_000_000, np.uint8)}, **options)
publisher.publish(0)
"""
    ran = run_script(tmp_path, script)
    assert "was not closed, and 1 version was not sent; they are lost" in ran.stderr
    # The first version is an anchor, which is kept nowhere else. The next one is a delta.
    script = script.replace("dict(", 'dict(state_dir="state", base="disk", ').replace(
        "np.zeros(10_000_000, np.uint8)", "weights"
    )
    weights = "weights = np.random.default_rng(STEP).integers(0, 255, 1_000_000).astype(np.uint8)"
    for step, fast in ((0, "max_bytes_per_second=10_000_000"), (1, "max_bytes_per_second=1000")):
        made = script.replace("max_bytes_per_second=1000", fast).replace(
            "exit_timeout=0.01", f"exit_timeout={30 - 30 * step}"
        )
        ran = run_script(tmp_path, made.replace("options =", f"{weights.replace('STEP', str(step))}\noptions ="))
    assert "the next publisher with this state_dir= sends them" in ran.stderr


def test_a_publisher_that_has_sent_everything_ends_without_a_word(tmp_path):
    script = """
import numpy as np, weightwire as ww
publisher = ww.Publisher("bucket", {"w": np.zeros(10, np.uint8)})
publisher.publish(0).result()
"""
    ran = run_script(tmp_path, script)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_publisher_that_nobody_closes_sends_what_is_left_when_the_program_ends(tmp_path):
    script = """
import numpy as np, weightwire as ww
publisher = ww.Publisher("bucket", {"w": np.arange(100_000, dtype=np.uint8)}, max_bytes_per_second=50_000)
publisher.publish(0)
"""
    ran = run_script(tmp_path, script)
    assert ran.returncode == 0 and "was not sent" not in ran.stderr
    assert ww.load(tmp_path / "bucket")["w"].sum() == np.arange(100_000, dtype=np.uint8).sum()


def test_a_ticket_keeps_its_publisher_at_work(bucket):
    status = ww.Publisher(bucket, small_state()).publish(0).result()
    assert status.stage == "committed"


def test_the_error_of_the_body_is_the_one_that_is_seen(bucket):
    with pytest.raises(KeyError), ww.Publisher(bucket, small_state()) as publisher:
        publisher.publish(0)
        raise KeyError
    assert publisher.status.pending_versions == 0, "what was published before the error is sent"
    with pytest.raises(KeyError), ww.Publisher(bucket, small_state()) as publisher:
        publisher.close()
        raise KeyError


def test_a_fork_that_ends_leaves_its_parent_s_publisher_as_it_is(tmp_path):
    script = """
class Tokenizer:
    def save_pretrained(self, directory):
        (directory / "tokenizer.json").write_text("{}")
weights = {"w": np.zeros(10, np.float32)}
with ww.Publisher("bucket", weights, tokenizer=Tokenizer(), anchor_every=1) as publisher:
    publisher.publish()
    publisher.flush()
    fork_that_refuses(publisher.publish, publisher.flush)
    weights["w"] += 1
    publisher.publish()
"""
    ran = run_script(tmp_path, REFUSED_IN_A_FORK + script)
    assert ran.returncode == 0, ran.stderr
    assert len(list((tmp_path / "bucket" / "anchors").rglob("tokenizer.json"))) == 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_pending_versions": 0}, "max_pending_versions is a whole number of at least 1, not 0"),
        ({"anchor_every": 0}, "anchor_every is a whole number of at least 1, or None for never, not 0"),
        ({"anchor_percent": 0.5}, "anchor_percent is a whole number, or None for never, not a float"),
        ({"threads": 0}, "threads is a whole number of at least 1, or None for one for each core, not 0"),
        ({"max_bytes_per_second": 0}, "max_bytes_per_second .* or None for no limit, not 0"),
        ({"rank_timeout": -1}, "rank_timeout is a number of seconds above 0"),
        ({"exit_timeout": -1}, "exit_timeout is a number of seconds of at least 0"),
        ({"dtype": "int8"}, "cannot be published as 'int8': give a floating-point type, such as torch.bfloat16"),
        ({"dtype": "bf16"}, "cannot be published as 'bf16': give torch.bfloat16.*\"bfloat16\".*Fp8"),
        ({"when_full": "drop"}, 'when_full is "wait" or "skip", not \'drop\''),
        ({"base": "file"}, 'base is "memory" or "disk", not \'file\''),
        ({"base": "disk"}, "give state_dir="),
    ],
)
def test_an_argument_that_cannot_be_is_refused(bucket, options, why):
    with pytest.raises(ww.InvalidArgumentError, match=why) as caught:
        ww.Publisher(bucket, small_state(), **options)
    assert caught.value.code == "invalid_argument" and "--" not in str(caught.value)
    assert not bucket.exists()


def test_a_step_that_cannot_be_is_refused_and_not_counted(bucket):
    state = small_state()
    with ww.Publisher(bucket, state) as publisher:
        for step in (-1, "x", 1.5, 2**64):
            with pytest.raises(ww.InvalidArgumentError, match="step is a whole number"):
                publisher.publish(step)
        with pytest.raises(ww.InvalidArgumentError, match="names of tensors are strings, and 3 is a int"):
            publisher.publish(7, model={3: np.zeros(3)})
        assert publisher.publish().status.step == 0
        assert publisher.publish(np.int64(5)).status.step == 5


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), "bfloat16", "BF16"])
def test_a_type_may_be_given_in_any_spelling(bucket, dtype):
    array = np.arange(5, dtype=np.float32)
    publish(bucket, {"w": array}, dtype=dtype)
    assert_same(ww.load(bucket), {"w": array.astype(ml_dtypes.bfloat16)})


def test_numpy_s_own_types_are_known(bucket):
    publish(bucket, {"w": np.arange(5, dtype=np.float32)}, dtype=np.float16)
    assert_same(ww.load(bucket), {"w": np.arange(5, dtype=np.float16)})


def test_fp8_ignores_one_pattern_or_several():
    assert ww.Fp8(ignore="lm_head") == ww.Fp8(ignore=("lm_head",)) == ww.Fp8(ignore=["lm_head"])
    with pytest.raises(ww.InvalidArgumentError, match="no regular expression"):
        ww.Fp8(ignore="(")


def test_a_restarted_publisher_goes_on_with_the_chain(bucket, tmp_path):
    state = small_state()
    publish(bucket, state, state_dir=tmp_path / "state", base="disk")
    state["embed.weight"][3] = 0
    (ticket,) = publish(bucket, state, state_dir=tmp_path / "state", base="disk")
    # publish() counts its steps from 0 again; only the state is new.
    assert (ticket.version, ticket.status.changed_elements) == (1, 16)
    state["embed.weight"][4] = 0
    (ticket,) = publish(bucket, state)  # without what the first two have left: rebuilt from the bucket
    assert (ticket.version, ticket.status.changed_elements) == (2, 16)
    assert_same(ww.load(bucket), state)


def test_a_restart_that_may_not_fetch_sends_the_whole_model(bucket):
    state = small_state()
    publish(bucket, state)
    state["embed.weight"][3] = 0
    with ww.Publisher(bucket, rebuild=False) as publisher:
        ticket = publisher.publish(1, model=state)
        ticket.result()
        # Without a delta, and so all of it counts as changed.
        assert (ticket.version, ticket.status.delta_bytes) == (1, None)
        assert ticket.status.anchor_bytes > sum(array.nbytes for array in state.values())
        assert ticket.status.changed_elements == sum(array.size for array in state.values())
        state["embed.weight"][4] = 0
        assert publisher.publish(2, model=state).result().changed_elements == 16
    assert_same(ww.load(bucket), state)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("held", [0, 1, 3])
def test_a_restart_from_any_checkpoint_goes_on_with_the_chain(bucket, tmp_path, held, kept):
    """A training that was resumed from an older checkpoint, or from a newer one than was published."""
    states = [small_state(seed) for seed in range(4)]
    options = {"state_dir": tmp_path / "state", "base": "disk"} if kept else {}
    publish(bucket, *states[:3], **options)
    model = states[held]
    with ww.Publisher(bucket, model, **options) as publisher:
        assert publisher.publish(held).version == 3
        model["embed.weight"][3] += 1
        ticket = publisher.publish(held + 1)
        assert (ticket.version, ticket.status.changed_elements) == (4, 16)
    assert_same(ww.load(bucket), model)
    assert_same(ww.load(bucket, 2), states[2])


def test_ctrl_c_ends_a_wait(tmp_path):
    script = """
import numpy as np, weightwire as ww
publisher = ww.Publisher("bucket", {"w": np.zeros(10_000_000, np.uint8)}, max_bytes_per_second=1000)
ticket = publisher.publish(0)
print("waiting", flush=True)
ticket.result()
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
        one.publish(0).result()
        state["scale"][()] = 5
        with pytest.raises(ww.ConflictError):
            other.publish(1).result()
        assert other.status.fatal_error
        for end in (other.flush, other.close):
            with pytest.raises(ww.ConflictError):
                end()
        one.publish(2).result()


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
        one.publish(0).result()
        with pytest.raises(ww.ConflictError), ww.Publisher(bucket, state) as other:
            state["scale"][()] = 5
            one.publish(1).result()
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
        publisher.publish(0, model=states[0])
        threads = [
            threading.Thread(target=publisher.publish, args=(n,), kwargs={"model": states[n]}) for n in range(1, 4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen = {int(ww.load(bucket, version=version)["w"][0]) for version in range(4)}
    assert seen == {0, 1, 2, 3}


def test_a_closed_publisher_ends_every_wait(bucket):
    publisher = ww.Publisher(bucket, {"w": np.zeros(10_000_000, np.uint8)}, max_bytes_per_second=1000)
    ticket = publisher.publish(0)
    publisher.close(discard=True)
    with pytest.raises(ww.UnavailableError, match="closed"):
        ticket.result()
    assert ticket.status.stage == "failed"
    assert publisher.status.version is None


def slow_publisher(bucket, **options):
    """A publisher with one version, which takes a long time to send."""
    state = {"w": np.arange(10_000_000, dtype=np.uint8)}
    publisher = ww.Publisher(bucket, state, max_bytes_per_second=1000, **options)
    publisher.publish(0)
    return publisher


def test_close_never_loses_a_version(bucket):
    state = small_state()
    publisher = ww.Publisher(bucket, state)
    for step in range(3):
        state["embed.weight"][step] += 1
        publisher.publish(step)
    publisher.close()
    publisher.close()  # does nothing
    assert_same(ww.load(bucket, version=2), state)
    for use in (publisher.publish, publisher.flush):
        with pytest.raises(ww.InvalidArgumentError, match="the publisher is closed"):
            use()


def test_a_close_that_takes_too_long_leaves_the_publisher_open(bucket):
    publisher = slow_publisher(bucket)
    with pytest.raises(ww.WaitTimeoutError, match=r"1 version is still not sent.*still open.*they are lost") as caught:
        publisher.close(0.01)
    assert caught.value.retryable
    assert publisher.status.pending_versions == 1
    publisher.publish(1)
    publisher.close(discard=True)
    publisher.close()


def test_close_says_where_unsent_versions_stay(bucket, tmp_path):
    options = {"state_dir": tmp_path / "state", "max_bytes_per_second": 20_000}
    state = {"w": np.zeros(1000, np.float32)}
    publisher = ww.Publisher(bucket, state, **options)
    publisher.publish(0)
    with pytest.raises(ww.WaitTimeoutError, match=r"they are lost, because .* sent as an anchor"):
        publisher.close(0)
    publisher.flush()
    publisher.publish(1, model={"v": np.random.default_rng(0).standard_normal(200_000).astype(np.float32), **state})
    with pytest.raises(ww.WaitTimeoutError, match=r"they stay in .*state, and the next publisher"):
        publisher.close(0.01)
    publisher.close(discard=True)


def test_a_version_that_waits_in_a_state_directory_survives_discard(bucket, tmp_path):
    state = {"w": np.zeros(200_000, np.float32)}
    kept = {"state_dir": tmp_path / "state", "base": "disk"}
    publish(bucket, state, **kept)
    state["w"][:] = np.random.default_rng(0).standard_normal(len(state["w"]))
    publisher = ww.Publisher(bucket, state, **kept, max_bytes_per_second=1000)
    publisher.publish(1)
    publisher.close(discard=True)
    ww.Publisher(bucket, **kept).close()
    assert_same(ww.load(bucket, version=1), state)


def test_an_error_that_ends_a_publisher_is_raised_by_close_which_closes_it(bucket):
    state = small_state()
    one, other = ww.Publisher(bucket, state), ww.Publisher(bucket, state)
    one.publish(0).result()
    state["scale"][()] = 5
    other.publish(1)
    with pytest.raises(ww.ConflictError) as caught:
        other.close()
    assert caught.value.code == "conflict"
    other.close()  # it is closed already
    one.close()


def test_a_ticket_is_like_a_future(bucket):
    publisher = slow_publisher(bucket)
    ticket = publisher.publish(1)
    assert not ticket.done()
    for wait in (ticket.result, ticket.exception):
        with pytest.raises(ww.WaitTimeoutError, match="is still"):
            wait(0)
        with pytest.raises(TimeoutError):
            wait(timeout=0.01)
    publisher.close(discard=True)
    assert ticket.done()
    for _ in range(2):
        assert isinstance(ticket.exception(), ww.UnavailableError)
        assert isinstance(asyncio.run(ticket.exception_async()), ww.UnavailableError)
        with pytest.raises(ww.UnavailableError):
            ticket.result()


def test_a_ticket_can_be_awaited(bucket):
    async def run():
        async with await ww.Publisher.open_async(bucket, small_state()) as publisher:
            ticket = await publisher.publish_async(7)
            await ticket.wait_read_async()
            return await ticket, await ticket.result_async(60)

    status, again = asyncio.run(run())
    assert status == again
    assert (status.stage, status.version, status.step) == ("committed", 0, 7)


def test_no_async_call_blocks_the_event_loop(bucket, tmp_path):
    """While each of them waits for a bucket that is missing, the loop runs, and brings the bucket back."""

    async def while_the_bucket_is_away(work):
        (bucket).rename(tmp_path / "away")
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        assert not task.done()
        (tmp_path / "away").rename(bucket)
        return await task

    async def run():
        publisher = await ww.Publisher.open_async(bucket, state)
        await publisher.publish_async(0)
        await publisher.flush_async()
        for step, use in enumerate((publisher.flush_async, publisher.close_async), start=1):
            state["embed.weight"][step] += 1
            ticket = await publisher.publish_async(step)
            await while_the_bucket_is_away(use())
            assert ticket.status.stage == "committed"
        await publisher.close_async()
        async with await ww.Publisher.open_async(bucket, state) as publisher:
            state["embed.weight"][5] += 1
            publisher.publish(5)
        assert publisher.status.pending_versions == 0

    state = small_state()
    asyncio.run(run())
    assert_same(ww.load(bucket), state)


def test_an_event_loop_closes_a_publisher_within_its_timeout(bucket):
    async def run():
        publisher = slow_publisher(bucket)
        with pytest.raises(ww.WaitTimeoutError, match="still open"):
            await publisher.close_async(0.01)
        await publisher.close_async(discard=True)
        with pytest.raises(KeyError):
            async with slow_publisher(bucket.with_name("other"), exit_timeout=0.01):
                raise KeyError

    asyncio.run(run())


def test_leaving_after_an_error_says_what_was_not_sent(bucket, caplog):
    with pytest.raises(KeyError), slow_publisher(bucket, exit_timeout=0.01) as publisher:
        raise KeyError
    assert "1 version of the publisher" in caplog.text and "they are lost" in caplog.text
    with pytest.raises(ww.InvalidArgumentError, match="closed"):
        publisher.publish()


def test_another_model_is_refused_unless_that_is_allowed(bucket):
    publish(bucket, {"w": np.zeros(3, np.float32)})
    other = {"v": np.zeros(3, np.float32)}
    with ww.Publisher(bucket, other) as publisher:
        with pytest.raises(ww.MismatchError, match=r"another model.*allow_new_model=True") as caught:
            publisher.publish()
        assert caught.value.code == "mismatch"
        assert publisher.publish(model={"w": np.ones(3, np.float16)}).result().version == 1, "types may change"
    publish(bucket, other, allow_new_model=True)
    assert_same(ww.load(bucket), other)


def test_a_publisher_names_its_run(bucket):
    with ww.Publisher(bucket) as publisher:
        assert publisher.run == str(bucket)
        assert len(publisher.run_id) == 32
        assert str(bucket) in repr(publisher)


def test_results_are_frozen_and_by_name(bucket):
    with ww.Publisher(bucket, small_state()) as publisher:
        ticket = publisher.publish()
        for status in (publisher.status, ticket.status):
            with pytest.raises(AttributeError):
                status.version = 3
    with pytest.raises(TypeError):
        ww.PublishStatus("committed")


def test_the_options_for_type_checkers_are_those_of_the_publisher():
    arguments = list(inspect.signature(ww.Publisher).parameters)
    assert sorted(arguments[2:]) == sorted(ww.PublisherOptions.__annotations__)


def test_a_closed_publisher_gives_its_state_directory_back(bucket, tmp_path):
    state = small_state()
    with ww.Publisher(bucket, state, state_dir=tmp_path / "state") as publisher:
        ticket = publisher.publish(0)
    with ww.Publisher(bucket, state, state_dir=tmp_path / "state") as again:
        again.publish(0).result()
    assert ticket.status.stage == "committed"


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
publisher._session.core.publish(core.PreparedState([("w", "F32", (4,), reader)], {}), 0, None)
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
    with ww.Publisher(
        bucket, state, when_full="skip", max_pending_versions=1, max_bytes_per_second=200_000
    ) as publisher:
        tickets = []
        for step in range(4):
            state["w"][:] = random.standard_normal(len(state["w"]))
            tickets.append(publisher.publish(step))
        publisher.flush()
        stages = [ticket.status.stage for ticket in tickets]
        assert "skipped" in stages
        publisher.publish(9).result()
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
publisher = ww.Publisher(bucket, weights, state_dir=state)
publisher.publish(0).result()
publisher.flush()
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, unlimited[1]))  # no file may be larger
for step in (1, 2):
    weights["a"] += np.random.default_rng(step).random(100_000, np.float32)
    publisher.publish(step)
    try:
        publisher.flush()
    except ww.LocalIOError as error:
        print("raised:", error)
publisher.flush()  # was said
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
publisher.publish(3)
publisher.flush()
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
        publisher.publish(0).result()
        publisher.flush()
        bucket.rename(tmp_path / "away")
        state["w"] += 1
        ticket = publisher.publish(1)
        thread = threading.Thread(target=bring_the_bucket_back)
        thread.start()
        assert ticket.result(60).stage == "committed"
        thread.join()


def test_a_run_that_cannot_be_is_said_in_one_sentence(tmp_path):
    with pytest.raises(ww.InvalidArgumentError, match="ftp://"):
        ww.Publisher("ftp://nowhere/run", {})
    with pytest.raises(ww.NotFoundError):
        ww.load(tmp_path / "nothing")
    with pytest.raises(ww.InvalidArgumentError, match="state_dir="):
        ww.Publisher(tmp_path / "bucket", {}, base="disk")
