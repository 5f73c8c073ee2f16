"""What we write is read by the Python safetensors package with the same bits, and what it writes is read by us."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from safetensors import SafetensorError, safe_open

BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

# The types numpy and ml_dtypes can hold; NaN payloads and infinities come with random bytes.
NUMPY_TYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "I16": np.int16,
    "U16": np.uint16,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I32": np.int32,
    "U32": np.uint32,
    "F32": np.float32,
    "C64": np.complex64,
    "F64": np.float64,
    "I64": np.int64,
    "U64": np.uint64,
}


def random_bytes(count, seed, dtype="U8"):
    values = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
    return (values & 1 if dtype == "BOOL" else values).tobytes()


def all_dtypes():
    """Tensors of every dtype: name -> (dtype, shape, bytes). A vector, an empty one and, unless packed, a scalar."""
    tensors = {}
    for seed, (dtype, bits) in enumerate(BITS.items()):
        for name, shape in {"matrix": [3, 8], "empty": [0, 5], "scalar": []}.items():
            size_bits = bits * int(np.prod(shape, dtype=np.int64))
            if size_bits % 8 == 0:
                tensors[f"{dtype}.{name}"] = (dtype, shape, random_bytes(size_bits // 8, seed, dtype))
    return tensors


def write_by_hand(path, tensors, metadata=None):
    """A safetensors file from nothing but its specification, in the order given."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_by_package(path):
    return {
        name: (entry["dtype"], entry["shape"], bytes(entry["data"]))
        for name, entry in safetensors.deserialize(path.read_bytes())
    }


def test_every_dtype_keeps_its_bits(tmp_path, roundtrip):
    tensors = all_dtypes()
    assert {dtype for dtype, _, _ in tensors.values()} == set(BITS)
    write_by_hand(tmp_path / "in.safetensors", tensors)
    roundtrip(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert read_by_package(tmp_path / "out.safetensors") == tensors
    roundtrip(tmp_path / "in.safetensors", tmp_path / "fresh", 10**9)
    assert read_by_package(tmp_path / "fresh/model.safetensors") == tensors


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_arrays_have_equal_bits(tmp_path, roundtrip, dtype):
    array = np.frombuffer(random_bytes(2 * 3 * 8 * 8, 1, dtype), NUMPY_TYPES[dtype])
    write_by_hand(tmp_path / "in.safetensors", {"a": (dtype, list(array.shape), array.tobytes())})
    roundtrip(tmp_path / "in.safetensors", tmp_path / "out", 10**9)
    name, entry = safetensors.deserialize((tmp_path / "out/model.safetensors").read_bytes())[0]
    read = np.frombuffer(entry["data"], NUMPY_TYPES[dtype]).reshape(entry["shape"])
    assert (name, entry["dtype"], read.shape) == ("a", dtype, array.shape)
    assert read.tobytes() == array.tobytes()


def test_fresh_files_have_the_bytes_the_package_writes(tmp_path, roundtrip):
    rng = np.random.default_rng(2)
    arrays = {
        "z.weight": rng.standard_normal((3, 5)).astype(np.float32),
        "a.weight": rng.standard_normal((2, 2)).astype(np.float16),
        "b.ids": rng.integers(0, 100, 7),
        "c.mask": np.array([True, False, True]),
        "d.none": np.zeros((0, 4), np.float64),
        "é.odd": rng.integers(0, 255, 3).astype(np.uint8),
    }
    expected = safetensors.numpy.save(arrays, metadata={"format": "pt"})
    (tmp_path / "in.safetensors").write_bytes(expected)
    roundtrip(tmp_path / "in.safetensors", tmp_path / "fresh", 10**9)
    assert (tmp_path / "fresh/model.safetensors").read_bytes() == expected
    roundtrip(tmp_path / "in.safetensors", tmp_path / "like")
    assert (tmp_path / "like").read_bytes() == expected


def test_metadata_is_kept(tmp_path, roundtrip):
    metadata = {"format": "pt", "note": 'line\nbreak "quoted" \\ é 漢'}
    write_by_hand(tmp_path / "in", {"a": ("U8", [1], b"x")}, metadata)
    roundtrip(tmp_path / "in", tmp_path / "out")
    with safe_open(tmp_path / "out", framework="numpy") as file:
        assert file.metadata() == metadata


def test_shards_hold_every_tensor_where_the_index_says(tmp_path, roundtrip):
    tensors = all_dtypes()
    write_by_hand(tmp_path / "in", tensors)
    roundtrip(tmp_path / "in", tmp_path / "out", 100)
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors)
    assert index["metadata"]["total_size"] == sum(len(content) for _, _, content in tensors.values())
    shards = {name: read_by_package(tmp_path / "out" / name) for name in set(index["weight_map"].values())}
    assert len(shards) > 3
    assert all(shards[shard][tensor] == tensors[tensor] for tensor, shard in index["weight_map"].items())
    assert sum(len(shard) for shard in shards.values()) == len(tensors)


def test_the_package_refuses_a_cut_file_of_ours(tmp_path, roundtrip):
    """Guards the tests above: the package does check what it reads."""
    write_by_hand(tmp_path / "in", {"a": ("U8", [4], b"abcd")})
    roundtrip(tmp_path / "in", tmp_path / "out")
    with pytest.raises(SafetensorError):
        safetensors.deserialize((tmp_path / "out").read_bytes()[:-1])
