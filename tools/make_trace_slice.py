"""Cuts the slices of the real traces that lie in tests/data: tools/make_trace_slice.py TRACE_DIRECTORY OUTPUT_DIRECTORY

Each slice is a pair of safetensors files, NAME.old.safetensors and NAME.new.safetensors: some rows of some tensors
before and after one step. Needs numpy only.
"""

import json
import sys
from pathlib import Path

import numpy as np

DTYPES = {"BF16": np.uint16, "F32": np.uint32, "U8": np.uint8, "I32": np.int32}


def read(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Tensors by name: the type's name and the bits."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, spec in json.loads(data[8:end]).items():
        if name != "__metadata__":
            begin, stop = (end + offset for offset in spec["data_offsets"])
            bits = np.frombuffer(data[begin:stop], DTYPES[spec["dtype"]]).reshape(spec["shape"])
            tensors[name] = (spec["dtype"], bits)
    return tensors


def write(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    header, offset = {}, 0
    for name, (dtype, bits) in tensors.items():
        header[name] = {"dtype": dtype, "shape": bits.shape, "data_offsets": [offset, offset + bits.nbytes]}
        offset += bits.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(b.tobytes() for _, b in tensors.values()))


def states(folder: Path, step: int) -> tuple[dict, dict]:
    """The states before and after a step."""
    state = {name: (dtype, bits.copy()) for name, (dtype, bits) in read(folder / "base.safetensors").items()}
    deltas = {}
    for path in sorted(folder.glob("deltas_*.safetensors")):
        deltas |= {tuple(key.split("/", 1)): value for key, value in read(path).items()}
    old = None
    for number in sorted({int(number) for number, _ in deltas if int(number) <= step}):
        if number == step:
            old = {name: (dtype, bits.copy()) for name, (dtype, bits) in state.items()}
        for name, (_, bits) in state.items():
            changed = deltas.get((f"{number:03d}", f"{name}/idx"))
            if changed is not None:
                bits.reshape(-1)[changed[1]] = deltas[(f"{number:03d}", f"{name}/val")][1]
    return old, state


def pick(state: dict, limits: dict[str, int]) -> dict[str, tuple[str, np.ndarray]]:
    """The first rows of the tensors whose names end as given; rows beyond the limit are left away."""
    picked = {}
    for ending, rows in limits.items():
        for name in sorted(state):
            if name.endswith(ending):
                dtype, bits = state[name]
                picked[name] = (dtype, bits[:rows] if bits.ndim else bits)
    return picked


ALL = 1 << 20
SLICES = {
    "tiny-47": (
        "tiny",
        47,
        {
            "layers.0.self_attn.k_proj.weight": ALL,
            "layers.0.self_attn.o_proj.weight": ALL,
            "layers.0.self_attn.q_proj.weight": ALL,
            "layers.3.input_layernorm.weight": ALL,
            "layers.3.self_attn.q_norm.weight": ALL,
        },
    ),
    "596m-master-10": ("596m-master", 10, {"_proj.weight": 56, "layernorm.weight": ALL}),
    "596m-pure-10": ("596m-pure", 10, {"_proj.weight": 56, "layernorm.weight": ALL}),
    "596m-fp8-ue8m0-10": ("596m-fp8", 10, {"ue8m0.scale": ALL, "ue8m0.q": 112}),
    "596m-fp8-f32-10": ("596m-fp8", 10, {"f32.scale": ALL, "f32.q": 32}),
}


def main() -> None:
    trace, output = Path(sys.argv[1]), Path(sys.argv[2])
    for name, (folder, step, limits) in SLICES.items():
        old, new = states(trace / folder, step)
        write(output / f"{name}.old.safetensors", pick(old, limits))
        write(output / f"{name}.new.safetensors", pick(new, limits))


if __name__ == "__main__":
    main()
