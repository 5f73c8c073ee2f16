"""A training for benchmarks: a model shaped like Qwen3-0.6B, and steps that change about 1 % of its bf16 weights."""

import torch


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    hidden, inner, heads, kv, head = 1024, 3072, 16, 8, 128
    named: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (151936, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        named |= {
            prefix + "self_attn.q_proj.weight": (heads * head, hidden),
            prefix + "self_attn.k_proj.weight": (kv * head, hidden),
            prefix + "self_attn.v_proj.weight": (kv * head, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, heads * head),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
        }
    return named


class Training:
    """fp32 weights, and two directions to move them in: there and back again, so that no step costs a new model."""

    def __init__(self, layers: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.master = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in shapes(layers).items()}
        self._up = True

    def step(self) -> None:
        rate = 2.5e-7 if self._up else -2.5e-7
        self._up = not self._up
        for tensor in self.master.values():
            tensor += rate

    def published(self) -> dict[str, torch.Tensor]:
        return {name: tensor.to(torch.bfloat16) for name, tensor in self.master.items()}
