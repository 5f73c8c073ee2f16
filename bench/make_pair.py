"""Makes a pair of states large enough to measure with: PYTHONPATH=tools bench/make_pair.py OUTPUT_DIRECTORY [MEBIBYTES]

Writes old.safetensors and new.safetensors from the slices of real steps in tests/data. Each tensor is copied many
times over, every copy with its rows and its columns in another order, the same for old and new: how often a weight
changes, given its exponent, its row and its column, stays what it is, and nothing repeats that a compressor could find.
The same bytes come out every time. Needs numpy only.
"""

import sys
from pathlib import Path

import numpy as np
from make_trace_slice import read, write

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
# Together 1.4 % of the elements change.
SLICES = ("596m-master-10", "tiny-47")
COPIES_A_TENSOR = 32  # makes tensors of 2 to 7 MiB


def shuffled(bits: tuple[np.ndarray, ...], random: np.random.Generator) -> list[np.ndarray]:
    """Arrays of one shape in one new order of rows and columns."""
    orders = [random.permutation(extent) for extent in bits[0].shape]
    return [array[np.ix_(*orders)] for array in bits]


def main() -> None:
    output, wanted = Path(sys.argv[1]), int(sys.argv[2] if len(sys.argv) > 2 else 256) << 20
    random = np.random.default_rng(7)
    slices = [[read(DATA / f"{name}.{age}.safetensors") for age in ("old", "new")] for name in SLICES]
    states, size, layer = ({}, {}), 0, 0
    while size < wanted:
        for name, (old, new) in zip(SLICES, slices, strict=True):
            for tensor, (dtype, bits) in old.items():
                copies = [
                    shuffled((bits, new[tensor][1]), random) for _ in range(COPIES_A_TENSOR if bits.ndim > 1 else 1)
                ]
                for state, arrays in zip(states, zip(*copies, strict=True), strict=True):
                    state[f"{layer}.{name}.{tensor}"] = (dtype, np.concatenate(arrays))
                size += bits.nbytes * len(copies)
        layer += 1
    for state, age in zip(states, ("old", "new"), strict=True):
        write(output / f"{age}.safetensors", state)


if __name__ == "__main__":
    main()
