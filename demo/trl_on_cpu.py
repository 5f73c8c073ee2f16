"""Lets TRL's asynchronous trainers run without a GPU: for demonstrations and tests only."""

import torch


def install():
    """Replaces what the trainer takes from CUDA: the name of the device, and an attention over packed sequences."""
    from trl.experimental.async_distillation import async_distillation_trainer
    from trl.experimental.async_grpo import async_grpo_trainer, async_rollout_worker, packing

    # It asks for vLLM's package, though all it needs is a server.
    async_rollout_worker.is_vllm_available = lambda: True
    for trainer in (async_grpo_trainer, async_distillation_trainer):
        trainer.get_peak_flops_per_device = lambda accelerator, dtype: None
    packing._flash_attn = lambda: Attention


class Attention:
    @staticmethod
    def flash_attn_varlen_func(
        query, key, value, starts_q, starts_k, longest_q, longest_k, *, softmax_scale, causal, window_size
    ):
        """Each segment of queries attends to its own keys, of which it is the end. All segments at once, padded."""
        assert causal and window_size == (-1, -1)
        queries, in_query = _padded(starts_q, longest_q)
        keys, in_key = _padded(starts_k, longest_k)
        lengths_q, lengths_k = starts_q.diff(), starts_k.diff()
        position_q = torch.arange(longest_q) + (lengths_k - lengths_q)[:, None]
        mask = (torch.arange(longest_k)[None, None] <= position_q[:, :, None]) & in_key[:, None]
        mask |= ~in_query[:, :, None]  # padding attends to anything; it is dropped
        out = torch.nn.functional.scaled_dot_product_attention(
            query[queries].transpose(1, 2),
            key[keys].transpose(1, 2),
            value[keys].transpose(1, 2),
            attn_mask=mask[:, None],
            scale=softmax_scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out.transpose(1, 2)[in_query]


def _padded(starts, longest):
    """Indices as a rectangle, a row for each segment, and which of them are real."""
    offsets = torch.arange(longest)[None]
    real = offsets < starts.diff()[:, None]
    return torch.where(real, starts[:-1, None] + offsets, 0).long(), real
