"""What a freshly loaded engine generates. Reads questions as lines of JSON and answers each with a line; the process is
kept, since importing vLLM takes longest."""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import engine_tests
import vllm
import vllm._custom_ops
import vllm.model_executor.layers.utils
from vllm.distributed import cleanup_dist_env_and_memory

PACKED = (vllm._custom_ops._supports_onednn, vllm.model_executor.layers.utils.check_cpu_sgl_kernel)


def answer(question):
    if question["plain"]:
        engine_tests.plain_layout()
    else:
        vllm._custom_ops._supports_onednn, vllm.model_executor.layers.utils.check_cpu_sgl_kernel = PACKED
    engine = vllm.LLM(
        question["model"],
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=1024,
        gpu_memory_utilization=0.05,
        skip_tokenizer_init=True,
    )
    results = []
    for tokens, count in question["requests"]:
        sampling = vllm.SamplingParams(
            max_tokens=count, temperature=0, logprobs=0, ignore_eos=True, detokenize=False, seed=0
        )
        (output,) = engine.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)
        completion = output.outputs[0]
        logprobs = [
            entry[token].logprob for token, entry in zip(completion.token_ids, completion.logprobs, strict=True)
        ]
        results.append([list(completion.token_ids), logprobs])
    del engine
    cleanup_dist_env_and_memory()
    return results


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is not an answer
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
