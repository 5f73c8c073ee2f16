"""A plugin for tests only."""

import functools
import os


def plain_layout():
    """Turns off what packs linear weights on CPUs, which leaves them as a GPU has them. The outputs are the same."""
    import vllm._custom_ops
    import vllm.model_executor.layers.utils

    vllm._custom_ops._supports_onednn = False
    vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda n, k, dtype: False


def fault():
    """Makes workers fail as the file named by ENGINE_TESTS_FAULT says, once it exists. "half": the second write of a
    commit raises. "one worker": the second worker writes other values. "bits": other code changes the weights."""
    from vllm.distributed import get_tensor_model_parallel_rank
    from weightwire.integrations.vllm._prepared_update import SparseWrite
    from weightwire.integrations.vllm._worker_agent import WorkerAgent

    path = os.environ["ENGINE_TESTS_FAULT"]

    def asked_for():
        if not os.path.exists(path):
            return None
        with open(path) as file:
            return file.read()

    write = SparseWrite.write
    written = []

    def failing_write(self):
        written.append(self)
        if asked_for() == "half" and len(written) > 1:
            raise MemoryError("as the test wants it")
        write(self)
        if asked_for() == "one worker" and get_tensor_model_parallel_rank() == 1:
            self.words[self.positions[0]] += 1

    start_task = WorkerAgent.start_task

    @functools.wraps(start_task)  # the engine calls it by its name
    def meddling_start_task(self, task, arguments):
        written.clear()
        if asked_for() == "bits":
            for parameter in self._worker.get_model().parameters():
                parameter.data.view(-1)[:1] += 1
        return start_task(self, task, arguments)

    SparseWrite.write = failing_write
    WorkerAgent.start_task = meddling_start_task
