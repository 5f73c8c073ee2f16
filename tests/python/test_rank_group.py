"""Publishing from several ranks of torch.distributed. The judge is `full_tensor()`: what is loaded must be equal to it,
bit for bit."""

import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import weightwire as ww
from conftest import assert_same_tensors
from rank_team import Raised, Team
from torch import nn

# --- what the ranks do ---


def block(seed=0):
    """Shapes that no number of ranks divides, and fewer rows than ranks."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 13), nn.Linear(13, 6), nn.LayerNorm(6), nn.Linear(6, 3, bias=False))
    model.register_buffer("counts", torch.arange(5))
    return model


def make_fsdp(here):
    from torch.distributed.fsdp import fully_shard

    here.model = block()
    for layer in here.model:
        fully_shard(layer)
    fully_shard(here.model)


def make_hsdp(here):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    here.model = block()
    fully_shard(here.model, mesh=init_device_mesh("cpu", (2, here.ranks // 2), mesh_dim_names=("replicate", "shard")))


def make_parallel(here, data_parallel):
    """Tensor parallelism by columns and rows; if asked for, fully_shard over it: a mesh of two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    here.model = block()
    mesh = init_device_mesh("cpu", (data_parallel, here.ranks // data_parallel), mesh_dim_names=("data", "tensor"))
    parallelize_module(here.model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    if data_parallel > 1:
        fully_shard(here.model, mesh=mesh["data"])


def make_cut_by_hand(here):
    """A mesh of two dimensions, and every placement there is."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, here.ranks // 2))
    torch.manual_seed(1)
    placements = {
        "rows, columns": (Shard(0), Shard(1)),
        "columns, rows": (Shard(1), Shard(0)),
        "rows twice": (Shard(0), Shard(0)),
        "copies of columns": (Replicate(), Shard(1)),
        "rows of copies": (Shard(0), Replicate()),
        "copies": (Replicate(), Replicate()),
        "the last of three": (Shard(2), Shard(1)),
    }
    here.model = {}
    for name, placement in placements.items():
        shape = (3, 5, 9) if "three" in name else (9, 5)
        here.model[name] = distribute_tensor(torch.randn(shape), mesh, placement)
    here.model["plain"] = torch.randn(11, 3)
    here.model["bf16"] = distribute_tensor(torch.randn(5, 2).bfloat16(), mesh, (Shard(0), Shard(1)))
    here.model["scalar"] = torch.tensor(1.5)
    here.model["nothing"] = torch.zeros(0, 4)


def make_large(here):
    """More than is sent or fetched at once, in columns: a row of the anchor is made of what several ranks hold."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (here.ranks,))
    here.model = {"wide": distribute_tensor(torch.randn(1000, 20_001), mesh, (Shard(1),))}


def make_plain(here):
    torch.manual_seed(2)
    here.model = {f"layer.{i}": torch.randn(64, 16 + i) for i in range(12)}


def train(here, seed):
    """The same change of the whole tensors, whoever holds what of them."""
    tensors = here.model if isinstance(here.model, dict) else dict(here.model.state_dict())
    with torch.no_grad():
        for i, tensor in enumerate(tensors[name] for name in sorted(tensors)):
            if tensor.numel() == 0 or not tensor.is_floating_point() or (seed + i) % 3 == 2:
                continue
            generator = torch.Generator().manual_seed(1000 * seed + i)
            step = torch.randn(tensor.shape, generator=generator).mul_(0.01).to(tensor.dtype)
            if hasattr(tensor, "device_mesh"):
                from torch.distributed.tensor import distribute_tensor

                placements = [p for p in tensor.placements]
                if any(type(p).__name__ == "_StridedShard" for p in placements):
                    # Which element is which does not matter, only that some change.
                    tensor.to_local().add_(seed * 0.01)
                    continue
                step = distribute_tensor(step, tensor.device_mesh, placements)
            tensor.add_(step)


def whole(here):
    """What everything is, by a collective of torch: to be compared with what was published without one."""
    tensors = here.model if isinstance(here.model, dict) else here.model.state_dict()
    full = {name: t.full_tensor() if hasattr(t, "device_mesh") else t for name, t in tensors.items()}
    return {name: tensor.detach().clone() for name, tensor in full.items()} if here.rank == 0 else None


def open_publisher(here, run, options=None):
    run = run[here.rank] if isinstance(run, list) else run
    here.publisher = ww.Publisher(run, here.model, **{"rank_timeout": 30, **(options or {})})
    here.tickets = {}


def publish(here, step):
    here.tickets[step] = here.publisher.publish(step)


def wait(here, step):
    status = here.tickets[step].result(30)
    return status.stage, status.version


def publish_and_wait(here, step):
    publish(here, step)
    return wait(here, step)


def close(here):
    here.publisher.flush(30)
    sent = here.publisher.status.bytes_sent
    here.publisher.close()
    return sent


def abandon(here):
    here.publisher.close(discard=True)


def status(here):
    return here.publisher.status


def drop_while_it_is_read(here):
    """Only the ticket is left, and the publisher is part of a cycle."""
    import gc

    ticket = here.publisher.publish(background=True)
    here.publisher.cycle = here.publisher
    del here.publisher
    gc.collect()
    return ticket.result(30).version


def train_while_it_is_read(here, run, steps):
    """The states that were published, as rank 0 sees them."""
    optimizer = torch.optim.AdamW(here.model.parameters(), lr=0.01)
    open_publisher(here, run, {"optimizer": optimizer})
    states = []
    for step in range(steps):
        here.publisher.publish(step)
        states.append(whole(here))
        here.model(torch.ones(3, 7)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    close(here)
    return states


def publish_what_changes(here, changing_rank):
    """On one rank, weights are found to have changed while they were read."""
    from weightwire import _model_state as publisher

    class Changing(publisher.WriteCheck):
        def __call__(self):
            return "'w' was changed" if here.rank == changing_rank else super().__call__()

    publisher.WriteCheck, known = Changing, publisher.WriteCheck
    try:
        ticket = here.publisher.publish(1, background=True)
    finally:
        publisher.WriteCheck = known
    with pytest.raises(ww.WeightwireError) as raised:
        ticket.result(30)
    return str(raised.value)


def publish_after_what_changed(here, changing_rank):
    """Nobody asks what became of it: then the next call fails too, on all ranks, and all stay in step."""
    from weightwire import _model_state as publisher

    class Changing(publisher.WriteCheck):
        def __call__(self):
            return "'w' was changed"

    if here.rank == changing_rank:
        publisher.WriteCheck, known = Changing, publisher.WriteCheck
    try:
        here.publisher.publish(background=True)
    finally:
        if here.rank == changing_rank:
            publisher.WriteCheck = known
    with contextlib.suppress(ww.WeightwireError):
        here.publisher.publish()
    with contextlib.suppress(ww.WeightwireError):
        here.publisher.flush(30)


# --- the tests ---


@pytest.fixture(scope="module")
def four():
    team = Team(4)
    yield team
    team.end()


@pytest.fixture(scope="module")
def two():
    team = Team(2)
    yield team
    team.end()


@pytest.fixture
def short_lived():
    teams = []

    def make(ranks):
        teams.append(Team(ranks))
        return teams[-1]

    yield make
    for team in teams:
        team.end()


@pytest.fixture
def team(request):
    return request.getfixturevalue(request.param)


def loaded(bucket, version=None):
    return ww.load(bucket, version=version, framework="torch")


def assert_published(team, bucket, step, version):
    assert team.all(publish_and_wait, step) == [("committed", version)] * team.ranks
    expected = team.all(whole)[0]
    assert_same_tensors(loaded(bucket), expected)
    return expected


def follow_some_versions(team, bucket, versions=4):
    team.all(open_publisher, str(bucket))
    expected = []
    for version in range(versions):
        expected.append(assert_published(team, bucket, version, version))
        team.all(train, version)
    team.all(close)
    for version, state in enumerate(expected):
        assert_same_tensors(loaded(bucket, version), state)


@pytest.mark.parametrize("team", ["two", "four"], indirect=True)
def test_fully_shard(team, bucket):
    team.all(make_fsdp)
    follow_some_versions(team, bucket)


def test_training_goes_on_while_shards_are_read(two, bucket):
    two.all(make_fsdp)
    states = two.all(train_while_it_is_read, str(bucket), 6)[0]
    for version, state in enumerate(states):
        assert_same_tensors(loaded(bucket, version), state)


def test_a_publisher_lives_as_long_as_its_tickets(two, bucket):
    two.all(make_fsdp)
    two.all(open_publisher, str(bucket))
    assert_published(two, bucket, 0, 0)
    two.all(train, 1)
    assert two.all(drop_while_it_is_read) == [1, 1]
    assert_same_tensors(loaded(bucket), two.all(whole)[0])


def test_weights_that_change_on_one_rank_while_they_are_read(two, bucket):
    two.all(make_fsdp)
    two.all(open_publisher, str(bucket))
    assert_published(two, bucket, 0, 0)
    two.all(train, 1)
    said = two.all(publish_what_changes, 1)
    assert all("'w' was changed" in sentence for sentence in said), said
    expected = assert_published(two, bucket, 2, 1)
    two.all(train, 2)
    two.all(publish_after_what_changed, 1)
    assert_same_tensors(loaded(bucket), expected)
    two.all(train, 3)
    assert_published(two, bucket, 5, 2)
    two.all(close)


@pytest.mark.parametrize("team", ["two", "four"], indirect=True)
def test_tensor_parallel(team, bucket):
    team.all(make_parallel, 1)
    follow_some_versions(team, bucket)


def test_fully_shard_over_tensor_parallel(four, bucket):
    four.all(make_parallel, 2)
    follow_some_versions(four, bucket)


def test_fully_shard_with_copies(four, bucket):
    four.all(make_hsdp)
    follow_some_versions(four, bucket)


def test_every_placement_on_a_mesh_of_two_dimensions(four, bucket):
    four.all(make_cut_by_hand)
    follow_some_versions(four, bucket)


def test_pieces_that_take_many_requests(two, bucket, tmp_path, weightwire_command):
    two.all(make_large)
    two.all(open_publisher, str(bucket))
    assert_published(two, bucket, 0, 0)
    two.all(close)
    for command in (["verify", bucket], ["checkout", bucket, tmp_path / "out"]):
        subprocess.run([weightwire_command, *command], check=True, capture_output=True)


def test_data_parallel_is_spread_evenly(four, bucket):
    four.all(make_plain)
    four.all(open_publisher, str(bucket))
    assert_published(four, bucket, 0, 0)
    sent = four.all(close)
    assert max(sent) < 1.3 * min(sent)


def test_it_is_what_one_process_would_publish(four, bucket, tmp_path, weightwire_command):
    four.all(make_fsdp)
    four.all(open_publisher, str(bucket), {"anchor_every": 2, "anchor_percent": None})
    alone = ww.Publisher(tmp_path / "alone", distributed=False, anchor_every=2, anchor_percent=None)
    for step in range(4):
        state = assert_published(four, bucket, step, step)
        alone.publish(step, model=state)
        four.all(train, step)
    four.all(close)
    alone.flush()
    alone.close()

    def states(run):
        records = sorted((run / "versions").iterdir())
        return [json.loads(record.read_text())["digest"] for record in records]

    assert states(bucket) == states(tmp_path / "alone")
    # To readers it is a run like any other, and what they write out a checkpoint like any other.
    subprocess.run([weightwire_command, "verify", str(bucket)], check=True, capture_output=True)
    for name, run in (("many", bucket), ("one", tmp_path / "alone")):
        subprocess.run([weightwire_command, "checkout", f"{run}@2", str(tmp_path / name)], check=True)
    assert (tmp_path / "many" / "model.safetensors").read_bytes() == (
        tmp_path / "one" / "model.safetensors"
    ).read_bytes()


def test_a_run_goes_on_with_another_number_of_ranks(two, four, bucket):
    version = 0
    for team in (two, four, two):
        team.all(make_fsdp)
        team.all(train, 10 + version)
        team.all(open_publisher, str(bucket))
        for _ in range(2):
            assert_published(team, bucket, version, version)
            team.all(train, version)
            version += 1
        team.all(close)
    model = block()
    with ww.Publisher(bucket, model) as publisher:
        publisher.publish(version).result(30)
    assert_same_tensors(loaded(bucket), dict(model.state_dict()))
    newest = json.loads(max((bucket / "versions").iterdir()).read_text())
    assert newest["chain_start"] == "0", "nobody had to begin again"


def test_ranks_that_may_not_fetch_go_on_with_a_rebase(two, bucket):
    two.all(make_fsdp)
    two.all(open_publisher, str(bucket))
    assert_published(two, bucket, 0, 0)
    two.all(close)
    two.all(train, 1)
    two.all(open_publisher, str(bucket), {"rebuild": False})
    assert_published(two, bucket, 1, 1)
    two.all(train, 2)
    assert_published(two, bucket, 2, 2)
    two.all(close)
    records = [json.loads(record.read_text()) for record in sorted((bucket / "versions").iterdir())]
    assert [record["delta"] is None for record in records] == [True, True, False]


def test_the_state_of_the_newest_version_is_not_published_again(two, bucket):
    two.all(make_fsdp)
    two.all(open_publisher, str(bucket))
    two.all(publish_and_wait, 5)
    two.all(close)
    two.all(open_publisher, str(bucket))
    assert two.all(publish_and_wait, 5) == [("already_published", 0)] * 2
    two.all(train, 1)
    assert_published(two, bucket, 6, 1)
    two.all(close)


def test_no_rank_waits_for_another(two, bucket):
    two.all(make_fsdp)
    two.all(open_publisher, str(bucket))
    assert_published(two, bucket, 0, 0)
    expected = []
    for step in (1, 2, 3):
        two.all(train, step)
        expected.append(two.all(whole)[0])
        two.one(0, publish, step)  # returns, though rank 1 has not even called
        two.start(1, publish, step)
        two.result(1)
    for step in (1, 2, 3):
        assert two.all(wait, step) == [("committed", step)] * 2
        assert_same_tensors(loaded(bucket, step), expected[step - 1])
    two.all(close)


def test_ranks_that_are_steps_apart(two, bucket):
    two.all(make_plain)
    two.all(open_publisher, str(bucket))
    for step in range(4):
        two.one(1, publish, step)
        two.one(1, train, step)
    for step in range(4):
        two.one(0, publish, step)
        two.one(0, train, step)
    assert two.all(wait, 3) == [("committed", 3)] * 2
    two.all(close)


def test_a_rank_that_gives_another_step(two, bucket):
    two.all(make_fsdp)
    two.all(open_publisher, str(bucket))
    before = assert_published(two, bucket, 0, 0)
    two.all(train, 1)
    two.one(0, publish, 1)
    two.one(1, publish_as, 1, 7)
    for error in two.all_raise(wait, 1):
        assert error.kind == "MismatchError"
        assert "rank 1 and rank 0 disagree about the step: 7 there, 1 here" in error.message
    assert_same_tensors(loaded(bucket), before)
    # Every rank is back at the version before, and what comes next is exact.
    two.all(train, 2)
    assert_published(two, bucket, 2, 1)
    two.all(close)


def publish_as(here, call, step):
    here.tickets[call] = here.publisher.publish(step)


def test_a_rank_whose_model_cannot_be_read(two, bucket):
    two.all(make_plain)
    two.all(open_publisher, str(bucket))
    assert_published(two, bucket, 0, 0)
    two.one(0, publish, 1)
    with pytest.raises(Raised, match=r"'layer.* is not there any more"):
        two.one(1, publish_other_model, 1)
    with pytest.raises(Raised, match=r"rank 1: 'layer.* is not there any more"):
        two.one(0, wait, 1)
    assert_published(two, bucket, 2, 1)
    two.all(close)


def test_a_rank_that_gives_other_types_once(two, bucket):
    two.all(make_plain)
    two.all(open_publisher, str(bucket))
    assert_published(two, bucket, 0, 0)
    two.one(0, publish, 1)
    with pytest.raises(Raised, match="others than when the publisher was made"):
        two.one(1, publish_halves, 1)
    with pytest.raises(Raised, match=r"rank 1: .*others than when the publisher was made"):
        two.one(0, wait, 1)
    # The call failed on both, so neither is a step behind.
    assert_published(two, bucket, 2, 1)
    two.all(close)


def publish_halves(here, step):
    here.publisher.publish(step, model={name: tensor.half() for name, tensor in here.model.items()})


def publish_other_model(here, step):
    here.publisher.publish(step, model={"other": torch.zeros(3)})


def add_tensor(here):
    here.model["more"] = torch.ones(3)


def untie(here):
    here.model["tied"] = here.model["kept"].clone()


def make_tied(here):
    weight = torch.ones(4, 4)
    here.model = {"kept": weight, "tied": weight}


@pytest.mark.parametrize(
    ("make", "change", "why"),
    [("make_tied", "add_tensor", "'more' was not there when"), ("make_tied", "untie", "are not tied any more")],
)
def test_a_model_that_has_become_another_is_refused_on_all_ranks(two, bucket, make, change, why):
    two.all(globals()[make])
    two.all(open_publisher, str(bucket))
    two.all(publish_and_wait, 0)
    two.one(1, globals()[change])
    two.one(0, publish, 1)
    with pytest.raises(Raised, match=why):
        two.one(1, publish, 1)
    with pytest.raises(Raised, match=f"rank 1: .*{why}"):
        two.one(0, wait, 1)
    two.all(globals()[make])
    assert two.all(publish_given, 2) == [("committed", 1)] * 2
    two.all(abandon)


def publish_given(here, step):
    here.tickets[step] = here.publisher.publish(step, model=here.model)
    return wait(here, step)


@pytest.mark.parametrize("step", ["x", -1])
def test_a_step_that_is_none_is_refused_on_all_ranks(two, bucket, step):
    two.all(make_plain)
    two.all(open_publisher, str(bucket))
    assert_published(two, bucket, 0, 0)
    two.one(0, publish_uncounted, 1)
    with pytest.raises(Raised, match="step is a whole number"):
        two.one(1, publish_as, 1, step)
    with pytest.raises(Raised, match="rank 1: step is a whole number"):
        two.one(0, wait, 1)
    # Counted on by all, so the next that nobody numbers is the same everywhere.
    two.all(publish_uncounted, 2)
    assert two.all(wait, 2) == [("committed", 1)] * 2
    two.all(close)


def publish_uncounted(here, call):
    here.tickets[call] = here.publisher.publish()


def limit_files(here, size):
    """No file of this process may grow beyond that."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if size is None else size, most))


def test_one_rank_cannot_write(two, bucket):
    two.all(make_fsdp)
    two.all(open_publisher, str(bucket), {"rank_timeout": 3})
    before = assert_published(two, bucket, 0, 0)
    two.all(train, 1)
    two.one(1, limit_files, 0)
    two.all(publish, 1)
    two.all(train, 2)
    two.all(publish, 2)  # made from the one that will fail
    for step, why in ((1, "rank 1: cannot upload a part of version 1"), (2, "the version before it was not published")):
        for error in two.all_raise(wait, step):
            assert "nothing was published" in error.message and why in error.message
    two.one(1, limit_files, None)
    assert_same_tensors(loaded(bucket), before)
    two.all(train, 3)
    assert_published(two, bucket, 3, 1)
    two.all(close)


def test_a_rank_killed_between_two_publishes(short_lived, bucket):
    team = short_lived(2)
    team.all(make_plain)
    team.all(open_publisher, str(bucket), {"rank_timeout": 2})
    before = assert_published(team, bucket, 0, 0)
    team.kill(1)
    team.one(0, train, 1)
    team.one(0, publish, 1)
    with pytest.raises(Raised, match="nothing was heard of rank 1 for 1 s"):
        team.one(0, wait, 1)
    assert_same_tensors(loaded(bucket), before)
    team.one(0, abandon)
    go_on_after_the_death(short_lived(2), bucket)


def go_on_after_the_death(team, bucket):
    team.all(make_plain)
    team.all(train, 5)
    team.all(open_publisher, str(bucket))
    assert_published(team, bucket, 9, 1)
    team.all(close)


def test_rank_0_killed(short_lived, bucket):
    team = short_lived(2)
    team.all(make_plain)
    team.all(open_publisher, str(bucket), {"rank_timeout": 60})
    before = assert_published(team, bucket, 0, 0)
    team.one(1, train, 1)
    team.kill(0)
    with pytest.raises(Raised, match="cannot reach rank 0"):
        team.one(1, publish_and_wait, 1)  # long before the time is up: the connection is gone
    with pytest.raises(Raised, match="cannot reach rank 0"):
        team.one(1, publish, 2)
    assert_same_tensors(loaded(bucket), before)
    with pytest.raises(Raised, match=r"^ValueError: the loss is nan"):
        team.one(1, leave_with_an_error)
    go_on_after_the_death(short_lived(2), bucket)


def cut_the_line(here):
    """As a firewall or a switch does it: the connection to rank 0's store breaks under whoever uses it."""
    port = here.publisher._session.ranks._pump._store.port
    cut = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            line = socket.socket(fileno=os.dup(int(name)))
            with line:
                if line.family != socket.AF_UNIX and line.getpeername()[1] == port:
                    line.shutdown(socket.SHUT_RDWR)
                    cut += 1
    return cut


def test_a_broken_connection_is_made_again(two, bucket):
    two.all(make_plain)
    two.all(open_publisher, str(bucket))
    assert_published(two, bucket, 0, 0)
    for step in (1, 2):
        two.all(train, step)
        assert two.one(1, cut_the_line) >= 1
        assert_published(two, bucket, step, step)
    two.all(close)


def leave_with_an_error(here):
    with here.publisher:
        raise ValueError("the loss is nan")


def test_a_rank_killed_while_it_uploads(short_lived, bucket):
    team = short_lived(2)
    team.all(make_plain)
    team.all(open_publisher, str(bucket), {"rank_timeout": 2})
    before = assert_published(team, bucket, 0, 0)
    team.all(train, 1)
    # Its call is made, and its process gone before the part can be up: it is stopped in its tracks.
    team.one(0, publish, 1)
    team.start(1, publish_and_die, 1)
    with pytest.raises(Raised, match="nothing was heard of rank 1"):
        team.one(0, wait, 1)
    assert_same_tensors(loaded(bucket), before)
    team.one(0, abandon)
    go_on_after_the_death(short_lived(2), bucket)


def publish_and_die(here, step):
    # The file store writes under another name first: a part that is cut off there is none.
    here.publisher._session.ranks._pump.stop()  # nothing of this call gets to rank 0
    here.publisher.publish(step)
    os.kill(os.getpid(), 9)


def test_all_ranks_hear_why_the_publisher_cannot_be_made(two, bucket, tmp_path):
    two.all(make_fsdp)
    (tmp_path / "file").write_text("no directory")
    errors = two.all_raise(open_publisher, str(tmp_path / "file" / "bucket"))
    assert f"rank 0: {errors[0].message}" == errors[1].message
    errors = two.all_raise(open_publisher, [str(bucket), str(tmp_path / "another")])
    assert "rank 1" in errors[0].message and errors[1].kind == "NotFoundError"


class FullDisk:
    """A tokenizer that cannot be written."""

    def save_pretrained(self, directory):
        raise OSError(28, "No space left on device")


def open_with_a_full_disk(here, run):
    open_publisher(here, run, {"tokenizer": FullDisk() if here.rank == 0 else None})


def open_badly(here, run, options):
    open_publisher(here, run, options if here.rank == 1 else None)


def test_all_ranks_hear_of_a_disk_that_is_full(two, bucket):
    two.all(make_plain)
    errors = two.all_raise(open_with_a_full_disk, str(bucket))
    assert [error.kind for error in errors] == ["LocalIOError"] * 2
    assert "No space left on device" in errors[0].message
    assert errors[1].message == f"rank 0: {errors[0].message}"


@pytest.mark.parametrize(
    "options", [{"when_full": "skip"}, {"anchor_every": -1}, {"dtype": torch.int8}, {"rank_timeout": 0}]
)
def test_all_ranks_hear_of_an_argument_that_is_wrong_on_one(two, bucket, options):
    two.all(make_plain)
    errors = two.all_raise(open_badly, str(bucket), options)
    assert [error.kind for error in errors] == ["InvalidArgumentError"] * 2
    assert errors[0].message == f"rank 1: {errors[1].message}"


def test_a_publisher_that_not_all_ranks_make_is_refused(two, bucket):
    two.all(make_fsdp)
    for rank in (0, 1):
        with pytest.raises(Raised, match=f"not rank {1 - rank}: make it on all ranks, or give distributed=False"):
            two.one(rank, open_publisher, str(bucket), {"rank_timeout": 1})
    # The next time, all come.
    follow_some_versions(two, bucket)


def make_partial(here):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    mesh = init_device_mesh("cpu", (here.ranks,))
    here.model = {"sum": DTensor.from_local(torch.ones(3), mesh, [Partial()])}


def test_what_is_no_box_is_refused(two, bucket):
    two.all(make_partial)
    for error in two.all_raise(open_publisher, str(bucket)):
        assert "reduce it" in error.message


def make_fsdp1(here):
    from torch.distributed.fsdp import FullyShardedDataParallel

    here.model = nn.Sequential(FullyShardedDataParallel(nn.Linear(8, 8), device_id=torch.device("cpu")))


def test_fsdp1_is_refused(two, bucket):
    two.all(make_fsdp1)
    for error in two.all_raise(open_publisher, str(bucket)):
        assert "use fully_shard (FSDP2)" in error.message


def make_other_layout(here):
    here.model = {"weight": torch.zeros(3 + here.rank)}


def test_ranks_with_other_shapes_are_refused(two, bucket):
    two.all(make_other_layout)
    for error in two.all_raise(open_publisher, str(bucket)):
        assert "the ranks disagree about 'weight'" in error.message


def make_linear(here, rows):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (here.ranks,))
    torch.manual_seed(3)
    here.model = {
        "up_proj.weight": distribute_tensor(torch.randn(rows, 200), mesh, [Shard(0)]),
        "norm.weight": torch.randn(7),
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, ww.Fp8(), ww.Fp8(scales="power_of_two")])
def test_conversion(two, bucket, tmp_path, dtype):
    two.all(make_linear, 300 if dtype == torch.bfloat16 else 384)
    two.all(make_linear, 512)
    two.all(open_publisher, str(bucket), {"dtype": dtype})
    with ww.Publisher(tmp_path / "alone", distributed=False, dtype=dtype) as alone:
        for step in range(2):
            assert two.all(publish_and_wait, step) == [("committed", step)] * 2
            alone.publish(step, model=two.all(whole)[0]).result(30)
            assert_same_tensors(loaded(bucket), loaded(tmp_path / "alone"))
            two.all(train, step)
    two.all(close)


def test_fp8_blocks_are_not_cut(two, bucket):
    two.all(make_linear, 300)
    for error in two.all_raise(open_publisher, str(bucket), {"dtype": ww.Fp8()}):
        assert "cuts a block of 128" in error.message


def test_shards_of_several_ranks_are_not_published_as_a_whole(two, bucket):
    two.all(make_fsdp)
    for error in two.all_raise(publish_alone, str(bucket)):
        assert "is held in shards by several ranks" in error.message


def test_the_example_on_the_page_runs(bucket, tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs" / "many-ranks.md"
    code = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL).group(1)
    (tmp_path / "train.py").write_text(code.replace("s3://bucket/run", str(bucket)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    # Two processes would want two GPUs.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert len(list((bucket / "versions").iterdir())) == 3


def publish_alone(here, run):
    ww.Publisher(f"{run}-{here.rank}", here.model, distributed=False).publish()
