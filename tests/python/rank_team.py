"""Processes with a process group of torch.distributed (gloo), which do what a test tells them, all of them or one."""

import multiprocessing
import os
import signal
import socket
import traceback
from types import SimpleNamespace

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch.distributed.fsdp", "torch.distributed.tensor.parallel", "weightwire"])


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _work(rank, ranks, port, pipe):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # On a machine with a GPU too, they hold their shards on the CPU: the judge's full_tensor() needs that with gloo.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), CUDA_VISIBLE_DEVICES="")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    here = SimpleNamespace(rank=rank, ranks=ranks)
    pipe.send(("done", None))
    while True:
        function, arguments = pipe.recv()
        if function is None:
            break
        try:
            pipe.send(("done", function(here, *arguments)))
        except BaseException as error:
            pipe.send(("raised", (type(error).__name__, str(error), traceback.format_exc())))
    dist.destroy_process_group()


class Raised(Exception):
    """What a rank raised."""

    def __init__(self, kind, message, trace):
        super().__init__(f"{kind}: {message}\n{trace}")
        self.kind = kind
        self.message = message


class Team:
    def __init__(self, ranks):
        self.ranks = ranks
        port = _free_port()
        self._pipes, self._processes = [], []
        for rank in range(ranks):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_work, args=(rank, ranks, port, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for rank in range(ranks):
            self.result(rank)

    def start(self, rank, function, *arguments):
        """`function(here, *arguments)`, whose result is fetched later."""
        self._pipes[rank].send((function, arguments))

    def result(self, rank):
        assert self._pipes[rank].poll(60), f"rank {rank} is stuck"
        kind, value = self._pipes[rank].recv()
        if kind == "raised":
            raise Raised(*value)
        return value

    def one(self, rank, function, *arguments):
        self.start(rank, function, *arguments)
        return self.result(rank)

    def outcomes(self, function, *arguments):
        """What each rank returned, or a Raised."""
        for rank in range(self.ranks):
            self.start(rank, function, *arguments)
        outcomes = []
        for rank in range(self.ranks):
            try:
                outcomes.append(self.result(rank))
            except Raised as error:
                outcomes.append(error)
        return outcomes

    def all(self, function, *arguments):
        outcomes = self.outcomes(function, *arguments)
        for outcome in outcomes:
            if isinstance(outcome, Raised):
                raise outcome
        return outcomes

    def all_raise(self, function, *arguments):
        """What each rank raised; every one must."""
        outcomes = self.outcomes(function, *arguments)
        assert all(isinstance(outcome, Raised) for outcome in outcomes), outcomes
        return outcomes

    def kill(self, rank):
        os.kill(self._processes[rank].pid, signal.SIGKILL)
        self._processes[rank].join()

    def end(self):
        for rank, process in enumerate(self._processes):
            if process.is_alive():
                self._pipes[rank].send((None, ()))
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
