"""A plugin for tests only."""

import os


def plain_layout():
    """Turns off what packs linear weights on CPUs, which leaves them as a GPU has them. The outputs are the same."""
    import vllm._custom_ops
    import vllm.model_executor.layers.utils

    vllm._custom_ops._supports_onednn = False
    vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda n, k, dtype: False


def fault():
    """Has workers fail as the file named by ENGINE_TESTS_FAULT says, once it is there: "half": in the middle of a
    commit, "one worker": the second one writes something else, "bits": somebody else writes to the weights."""
    from vllm.distributed import get_tensor_model_parallel_rank
    from weightwire.integrations.vllm import holding, worker

    path = os.environ["ENGINE_TESTS_FAULT"]

    def asked_for():
        if not os.path.exists(path):
            return None
        with open(path) as file:
            return file.read()

    write = holding.Sparse.write
    written = []

    def failing_write(self):
        written.append(self)
        if asked_for() == "half" and len(written) > 1:
            raise MemoryError("as the test wants it")
        write(self)
        if asked_for() == "one worker" and get_tensor_model_parallel_rank() == 1:
            self.words[self.positions[0]] += 1

    begin = worker.WorkerSide.begin

    def meddling_begin(self, task, arguments):
        written.clear()
        if asked_for() == "bits":
            for parameter in self._worker.get_model().parameters():
                parameter.data.view(-1)[:1] += 1
        return begin(self, task, arguments)

    holding.Sparse.write = failing_write
    worker.WorkerSide.begin = meddling_begin
