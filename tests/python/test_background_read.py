"""Weights that are read while the training goes on: only the optimizer waits, and what changes them all the same is
found out."""

import array
import gc
import subprocess
import sys
import threading

import pytest
import weightwire as ww
from conftest import assert_same_tensors
from weightwire._conversion import TorchBatchReader

torch = pytest.importorskip("torch")


@pytest.fixture
def gate(monkeypatch):
    """Tensors that torch converts are read only once it is open."""
    opened = threading.Event()
    opened.reached = threading.Event()
    read = TorchBatchReader.__call__

    def wait(self, *arguments):
        opened.reached.set()
        assert opened.wait(60)
        read(self, *arguments)

    monkeypatch.setattr(TorchBatchReader, "__call__", wait)
    yield opened
    opened.set()


def double_model():
    """Of a type that torch converts."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)).double()


def published(model):
    return {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor.clone()
        for name, tensor in model.state_dict().items()
    }


def train(model, optimizer):
    model(torch.randn(4, 8, dtype=torch.float64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def first_version(bucket, model, gate, **options):
    """A publisher whose next call has something to compare with."""
    gate.set()
    publisher = ww.Publisher(bucket, model, dtype=torch.bfloat16, **options)
    publisher.publish(0, background=False)
    gate.clear()
    gate.reached.clear()
    return publisher


def test_the_trainer_goes_on_and_its_optimizer_waits(bucket, gate):
    model = double_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with first_version(bucket, model, gate, optimizer=optimizer) as publisher:
        train(model, optimizer)
        expected = published(model)
        ticket = publisher.publish(1)
        assert gate.reached.wait(60)
        assert (ticket.status.stage, ticket.version, ticket.done()) == ("reading", None, False)
        with pytest.raises(ww.WaitTimeoutError, match="step 1 is still reading"):
            ticket.wait_read(0)
        with pytest.raises(ww.WaitTimeoutError, match="step 1 is still reading"):
            ticket.result(0)
        with pytest.raises(ww.WaitTimeoutError):
            publisher.flush(0)
        # The forward pass changes the buffers of the normalization, which is allowed; the step has to wait.
        opener = threading.Timer(0, gate.set)
        model(torch.randn(4, 8, dtype=torch.float64)).sum().backward()
        opener.start()
        optimizer.step()
        assert ticket.version == 1
        assert publisher.status.blocked_seconds > 0
    assert_same_tensors(ww.load(bucket, framework="torch"), expected)


def test_every_step_of_a_training_is_exact(bucket):
    model = double_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    expected = []
    with ww.Publisher(bucket, model, dtype=torch.bfloat16, optimizer=optimizer) as publisher:
        for step in range(20):
            publisher.publish(step)
            expected.append(published(model))
            train(model, optimizer)
    for version, state in enumerate(expected):
        assert_same_tensors(ww.load(bucket, version=version, framework="torch"), state)


def test_a_write_while_weights_are_read_is_found_out(bucket, gate):
    model = double_model()
    publisher = first_version(bucket, model, gate)
    with publisher:
        with torch.no_grad():
            model[0].weight += 1
        ticket = publisher.publish(1, background=True)
        assert gate.reached.wait(60)
        with torch.no_grad():
            model[2].bias += 1
        gate.set()
        with pytest.raises(ww.InvalidArgumentError, match=r"'2\.bias' was changed while it was read"):
            ticket.wait_read()
        assert ticket.status.stage == "failed"
        # Said once: the next one goes on from the version before.
        assert publisher.publish(2).result().version == 1
    assert_same_tensors(ww.load(bucket, framework="torch"), published(model))


def test_what_went_wrong_is_said_by_the_next_call_if_nobody_asked(bucket, gate):
    model = double_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with first_version(bucket, model, gate, optimizer=optimizer) as publisher:
        for raising in (optimizer.step, publisher.publish, publisher.flush):
            gate.clear()
            gate.reached.clear()
            publisher.publish()
            assert gate.reached.wait(60)
            with torch.no_grad():
                model[2].bias += 1
            gate.set()
            with pytest.raises(ww.InvalidArgumentError, match="was changed"):
                raising()
        publisher.publish()
    assert_same_tensors(ww.load(bucket, framework="torch"), published(model))


def test_versions_before_one_that_failed_are_sent(bucket, gate):
    weights = {"w": torch.zeros((1 << 16) + 1, dtype=torch.float64)}
    gate.set()
    with (
        pytest.raises(ww.InvalidArgumentError, match="was changed"),
        ww.Publisher(bucket, weights, dtype=torch.bfloat16, max_bytes_per_second=200_000) as publisher,
    ):
        publisher.publish(0)
        weights["w"] += 1
        publisher.publish(1)
        gate.clear()
        gate.reached.clear()
        publisher.publish(2, background=True)
        assert gate.reached.wait(60)
        weights["w"] += 1
        gate.set()
    assert (ww.load(bucket, framework="torch")["w"] == 1).all()


def test_a_write_while_the_first_version_is_read_is_found_out(bucket, gate):
    weights = {"w": torch.zeros((1 << 16) + 1, dtype=torch.float64)}
    with ww.Publisher(bucket, weights, dtype=torch.bfloat16) as publisher:
        ticket = publisher.publish(0, background=True)
        assert gate.reached.wait(60)
        weights["w"] += 1
        gate.set()
        with pytest.raises(ww.InvalidArgumentError, match="was changed"):
            ticket.result()
        assert publisher.publish(0).version == 0
    assert_same_tensors(ww.load(bucket, framework="torch"), {"w": weights["w"].bfloat16()})


def test_writes_that_torch_does_not_count_still_leave_one_exact_state(bucket, weightwire_command):
    """A mixture of two states, perhaps, but one that can be read."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).bfloat16()
    stop = threading.Event()

    def disturb():
        while not stop.is_set():
            for parameter in model.parameters():
                parameter.data.mul_(1.01)

    disturber = threading.Thread(target=disturb)
    with ww.Publisher(bucket, model) as publisher:
        publisher.publish()
        disturber.start()
        try:
            for _ in range(20):
                publisher.publish(background=True).wait_read()
        finally:
            stop.set()
            disturber.join()
        publisher.publish()
    subprocess.run([weightwire_command, "verify", bucket], check=True)
    assert_same_tensors(ww.load(bucket, framework="torch"), model.state_dict())


def test_what_is_read_is_waited_for_at_the_end(bucket, gate):
    model = double_model()
    with first_version(bucket, model, gate) as publisher:
        with torch.no_grad():
            model[0].weight += 1
        publisher.publish(1, background=True)
        assert gate.reached.wait(60)
        gate.set()
    assert_same_tensors(ww.load(bucket, framework="torch"), published(model))


def test_what_is_read_when_a_publisher_is_closed_is_kept_in_the_state_directory(bucket, tmp_path, gate):
    model = double_model()
    # So slow that nothing but the first version is sent before the end.
    publisher = first_version(bucket, model, gate, state_dir=tmp_path / "state", max_bytes_per_second=10_000)
    publisher.flush()
    for step in (1, 2, 3):
        with torch.no_grad():
            model[0].weight += 1
        ticket = publisher.publish(step, background=True)
        gate.set()
        if step < 3:
            ticket.wait_read()
    publisher.close()
    with ww.Publisher(bucket, model, dtype=torch.bfloat16, state_dir=tmp_path / "state") as publisher:
        publisher.flush()
    assert_same_tensors(ww.load(bucket, version=3, framework="torch"), published(model))


def test_publishers_of_one_optimizer_may_end_while_it_waits_for_them(bucket, tmp_path, gate):
    """torch goes through the optimizer's hooks one by one, and does not allow that there are fewer meanwhile."""
    model = double_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    publishers = [first_version(where, model, gate, optimizer=optimizer) for where in (bucket, tmp_path / "other")]
    model(torch.randn(4, 8, dtype=torch.float64)).sum().backward()
    for publisher in publishers:
        publisher.publish(1)
    assert gate.reached.wait(60)
    raised = []

    def step():
        try:
            optimizer.step()
        except BaseException as error:
            raised.append(error)

    stepping = threading.Thread(target=step)
    stepping.start()
    del publisher
    publishers.clear()
    gc.collect()
    gate.set()
    stepping.join()
    assert raised == []


def test_draining_raises_what_was_published_before_it_and_nothing_else(bucket, gate):
    model = double_model()
    with first_version(bucket, model, gate) as publisher:
        gate.set()
        publisher.flush(60)
        gate.clear()
        gate.reached.clear()
        reading = publisher._session.background.reading
        assert reading is None
        ticket = publisher.publish(1, background=True)
        assert gate.reached.wait(60)
        with pytest.raises(ww.WaitTimeoutError):
            publisher.flush(0.01)
        with torch.no_grad():
            model[0].weight += 1
        gate.set()
        with pytest.raises(ww.InvalidArgumentError, match="was changed"):
            publisher.flush(60)
        with pytest.raises(ww.InvalidArgumentError, match="was changed"):
            ticket.wait_read()  # whoever has the ticket may ask again
        publisher.flush(60)


def test_parameters_that_the_optimizer_does_not_step_are_refused(bucket):
    model = double_model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(ww.InvalidArgumentError, match=r"'1\.weight' is trained, and not by this optimizer"):
        ww.Publisher(bucket, model, optimizer=optimizer)
    for either in (model, model.state_dict()):
        with pytest.raises(ww.InvalidArgumentError, match="an optimizer of torch, not a str"):
            ww.Publisher(bucket, either, optimizer="adam")
    assert not bucket.exists()


def test_an_optimizer_that_steps_in_the_backward_pass_is_refused(bucket):
    class Lomo(torch.optim.Optimizer):
        """As lomo_optim has it: no step of its own."""

        def __init__(self, model):
            super().__init__(model.parameters(), {})

    model = double_model()
    with pytest.raises(ww.InvalidArgumentError, match="a Lomo changes the weights during the backward pass"):
        ww.Publisher(bucket, model, optimizer=Lomo(model))


def test_buffers_in_a_mapping_may_change_too(bucket, gate):
    model = double_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with first_version(bucket, model.state_dict(), gate, optimizer=optimizer) as publisher:
        train(model, optimizer)
        expected = published(model)
        publisher.publish(1)
        assert gate.reached.wait(60)
        model(torch.randn(4, 8, dtype=torch.float64)).sum().backward()
        gate.set()
        optimizer.step()
    assert_same_tensors(ww.load(bucket, framework="torch"), expected)


def test_adapters_that_are_merged_are_never_read_in_the_background(bucket, gate):
    peft = pytest.importorskip("peft")
    gate.set()
    base = torch.nn.Sequential(torch.nn.Linear(8, 16))
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["0"], r=2))
    with ww.Publisher(bucket, model, lora="merged") as publisher:
        assert publisher.publish(0, background=True).version == 0


def test_an_optimizer_waits_also_when_only_the_ticket_is_left(bucket, gate):
    model = double_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    publisher = first_version(bucket, model, gate, optimizer=optimizer)
    train(model, optimizer)
    expected = published(model)
    ticket = publisher.publish(1)
    assert gate.reached.wait(60)
    del publisher
    gc.collect()
    model(torch.randn(4, 8, dtype=torch.float64)).sum().backward()
    threading.Timer(0, gate.set).start()
    optimizer.step()
    assert ticket.result().version == 1
    assert_same_tensors(ww.load(bucket, framework="torch"), expected)


def test_many_threads_drain_while_one_publishes(bucket):
    model = double_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stop = threading.Event()
    raised = []
    with ww.Publisher(bucket, model, dtype=torch.bfloat16, optimizer=optimizer) as publisher:

        def drain():
            try:
                while not stop.is_set():
                    publisher.flush()
            except BaseException as error:
                raised.append(error)

        drainers = [threading.Thread(target=drain) for _ in range(3)]
        for drainer in drainers:
            drainer.start()
        tickets = []
        for step in range(40):
            train(model, optimizer)
            tickets.append(publisher.publish(step))
        stop.set()
        for drainer in drainers:
            drainer.join()
    assert not raised
    assert [ticket.version for ticket in tickets] == list(range(40))
    assert_same_tensors(ww.load(bucket, framework="torch"), published(model))


def test_a_write_to_a_tensor_of_a_mesh_is_found_out(bucket, gate):
    """torch counts it for the DTensor, and not for what this process holds of it."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        mesh = init_device_mesh("cpu", (1,))
        weights = {"w": distribute_tensor(torch.zeros(1 << 17, dtype=torch.float64), mesh, [Replicate()])}
        with ww.Publisher(bucket, weights, dtype=torch.bfloat16) as publisher:
            ticket = publisher.publish(0, background=True)
            assert gate.reached.wait(60)
            weights["w"].add_(1)
            gate.set()
            with pytest.raises(ww.InvalidArgumentError, match="was changed"):
                ticket.result()
    finally:
        dist.destroy_process_group()


def test_a_log_does_not_swallow_what_went_wrong(bucket, gate):
    from weightwire.integrations._publish_log import PublishLog

    model = double_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = PublishLog()
    with first_version(bucket, model, gate, optimizer=optimizer) as publisher:
        log.publish(publisher, 1)
        assert gate.reached.wait(60)
        with torch.no_grad():
            model[2].bias += 1
        gate.set()
        publisher._session.background.wait_finished()
        logs = {}
        log.write_to(logs, [])
        assert logs == {}
        with pytest.raises(ww.InvalidArgumentError, match="was changed"):
            optimizer.step()


def test_arrays_without_a_shape_are_read_in_the_background(bucket):
    with ww.Publisher(bucket, {"w": array.array("f", range(10))}) as publisher:
        publisher.publish(0, background=True)
    assert ww.load(bucket)["w"].tolist() == list(range(10))


def test_a_closed_publisher_says_so(bucket):
    publisher = ww.Publisher(bucket, double_model(), dtype=torch.bfloat16)
    publisher.close()
    with pytest.raises(ww.InvalidArgumentError, match="closed"):
        publisher.publish(0, background=True)


def test_an_optimizer_outlives_its_publisher(bucket):
    model = double_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ww.Publisher(bucket, model, dtype=torch.bfloat16, optimizer=optimizer) as publisher:
        publisher.publish(0)
    train(model, optimizer)
    dropped = ww.Publisher(bucket, model, dtype=torch.bfloat16, optimizer=optimizer)
    del dropped
    gc.collect()
    train(model, optimizer)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_training_on_a_gpu_is_not_waited_for(bucket):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 2048)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    expected = []
    with ww.Publisher(bucket, model, dtype=torch.bfloat16, optimizer=optimizer) as publisher:
        for step in range(8):
            ticket = publisher.publish(step)
            expected.append({name: tensor.bfloat16().cpu() for name, tensor in model.state_dict().items()})
            model(torch.randn(64, 2048, device="cuda")).pow(2).mean().backward()
            if step == 7:
                # What is queued later does not hold the reading up.
                queued = torch.cuda.Event()
                torch.cuda._sleep(20_000_000_000)
                queued.record()
                ticket.wait_read(60)
                assert not queued.query()
            optimizer.step()
            optimizer.zero_grad()
    for version, state in enumerate(expected):
        assert_same_tensors(ww.load(bucket, version=version, framework="torch"), state)


def test_an_interpreter_ends_while_weights_are_read(bucket):
    script = """
import sys, torch, weightwire as ww
weights = {"w": torch.zeros(1 << 22)}
publisher = ww.Publisher(sys.argv[1], weights, dtype=torch.bfloat16)
publisher.publish(0, background=True)
"""
    ended = subprocess.run([sys.executable, "-c", script, bucket], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
