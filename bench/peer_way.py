"""What a delta costs the way slime makes and applies it: bench/peer_way.py OLD NEW. Called by ./dev bench.

The same calls in the same order, in Python, with the same libraries and their defaults: numpy, zstandard at level 1,
xxh3-128. To encode a tensor: XOR into a new array, count what is not zero, compress, hash the new state. To apply it:
decompress 2 MiB at a time, XOR into the weights, hash them, compare. One thread. Prints seconds as JSON, the best of
several repetitions.
"""

import json
import sys
import time

import ml_dtypes  # noqa: F401 (gives numpy bfloat16)
import numpy as np
import xxhash
import zstandard
from safetensors import safe_open

REPEAT = 9
PIECE_BYTES = 2 << 20

Arrays = dict[str, np.ndarray]
Delta = dict[str, tuple[bytes, str]]


def load(path: str) -> Arrays:
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name).reshape(-1).view(np.uint8) for name in file.keys()}  # noqa: SIM118


def encode(old: Arrays, new: Arrays) -> Delta:
    delta = {}
    for name, bits in new.items():
        difference = bits ^ old[name]
        if np.count_nonzero(difference) == 0:
            continue
        compressed = zstandard.ZstdCompressor(level=1).compress(difference)
        delta[name] = (compressed, xxhash.xxh3_128(bits).hexdigest())
    return delta


def apply(delta: Delta, target: Arrays) -> None:
    for name, (compressed, wanted) in delta.items():
        weights = target[name]
        reader = zstandard.ZstdDecompressor().stream_reader(compressed)
        hasher = xxhash.xxh3_128()
        for begin in range(0, weights.size, PIECE_BYTES):
            piece = weights[begin : begin + PIECE_BYTES]
            piece ^= np.frombuffer(reader.read(piece.size), np.uint8)
            hasher.update(piece)
        if hasher.hexdigest() != wanted:
            raise SystemExit(f"{name} has another checksum than it should")


def main() -> None:
    old, new = load(sys.argv[1]), load(sys.argv[2])
    target = {name: bits.copy() for name, bits in old.items()}
    encode_s = apply_s = float("inf")
    for _ in range(REPEAT):
        start = time.perf_counter()
        delta = encode(old, new)
        encode_s = min(encode_s, time.perf_counter() - start)
        for name, bits in old.items():
            target[name][:] = bits
        start = time.perf_counter()
        apply(delta, target)
        apply_s = min(apply_s, time.perf_counter() - start)
        for name, bits in new.items():
            if not np.array_equal(target[name], bits):
                raise SystemExit(f"{name} is not what it should be")
    print(json.dumps({"encode_s": encode_s, "apply_s": apply_s}))


if __name__ == "__main__":
    main()
