"""The decoder in reference/: its pieces, whole deltas made by a small encoder here, and the vectors in spec/vectors."""

import hashlib
import importlib.util
import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
VECTORS = REPOSITORY / "spec/vectors"

SPEC = importlib.util.spec_from_file_location("weightwire_reference", REPOSITORY / "reference/weightwire_reference.py")
ww = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ww)


# --- a small encoder: everything the decoder needs to be tried with, nothing chosen well --------


def varint(value):
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def name_bytes(name):
    return varint(len(name.encode())) + name.encode()


def list_bytes(items):
    return varint(len(items)) + b"".join(items)


def alias_bytes(aliases):
    return list_bytes([name_bytes(alias) + name_bytes(kept) for alias, kept in sorted(aliases.items())])


def stream_of(events):
    x, words = 1, []
    for start, width in reversed(events):
        if x >= width << 32:
            words.append(x & ww.LOW)
            x >>= 32
        x = (x // width << 32) + x % width + start
    return b"".join(word.to_bytes(4, "little") for word in words) + x.to_bytes((x.bit_length() + 7) // 8, "little")


def raw_events(bits, count):
    if not count:
        return []
    if count > 32:
        return raw_events(bits & ww.LOW, 32) + raw_events(bits >> 32, count - 32)
    return [(bits << (32 - count), 1 << (32 - count))]


def bucket_of(magnitude):
    """(bucket, extra bits) as the specification says it, the other way round than the decoder."""
    n = magnitude - 1
    if n < 4:
        return n, 0
    high = n.bit_length() - 1
    return 2 * high + ((n >> (high - 1)) & 1), n & ((1 << (high - 1)) - 1)


def change_of(old, new, tables, rng):
    """(magnitude, up) of a change."""
    up = (
        ww.ordinal(new, tables.width, tables.sign_magnitude) - ww.ordinal(old, tables.width, tables.sign_magnitude)
    ) % (1 << tables.width)
    down = (1 << tables.width) - up
    return (up, True) if up < down or (up == down and rng.random() < 0.5) else (down, False)


def symbol_event(starts, symbol):
    return starts[symbol], starts[symbol + 1] - starts[symbol]


def sparse_stream(old, new, tables):
    events, rng = [], random.Random(1)
    classes = tables.classes(old)
    times = [0, *np.cumsum(tables.rates[classes]).tolist()]
    changed = np.flatnonzero(old != new).tolist()
    a = 0
    while True:
        z = times[a]
        limit = min(times[-1] - z, ww.HORIZON)
        if changed and times[changed[0]] - z < limit:
            i = changed.pop(0)
            first, last = ww.survival(times[i] - z), ww.survival(min(times[i + 1] - z, ww.HORIZON))
            magnitude, up = change_of(int(old[i]), int(new[i]), tables, rng)
            bucket, extra = bucket_of(magnitude)
            events.append((ww.MIDDLE - first if up else ww.MIDDLE + last, first - last))
            events.append(symbol_event(tables.starts[classes[i]], bucket))
            events += raw_events(extra, bucket // 2 - 1 if bucket >= 4 else 0)
            a = i + 1
        else:
            events.append((ww.MIDDLE - ww.survival(limit), 2 * ww.survival(limit)))
            if limit == times[-1] - z:
                return stream_of(events)
            a = next(i for i in range(a, len(times)) if times[i] - z >= ww.HORIZON)


def dense_stream(old, new, tables):
    events, rng = [], random.Random(2)
    for unit_class, before, after in zip(tables.classes(old).tolist(), old.tolist(), new.tolist(), strict=True):
        if before == after:
            events.append(symbol_event(tables.starts[unit_class], 0))
            continue
        magnitude, up = change_of(before, after, tables, rng)
        bucket, extra = bucket_of(magnitude)
        events.append(symbol_event(tables.starts[unit_class], bucket + 1))
        events += raw_events(2 * extra + (not up), bucket // 2 if bucket >= 4 else 1)
    return stream_of(events)


def table_set_bytes(flags=0, shift=0, bits=3, lowest=1, rate_code=120):
    """Class 0 names three symbols, class 1 one, the others none; all have a tail."""
    rates = [] if flags & 2 else [rate_code] if flags & 4 else [max(0, rate_code - 3 * c) for c in range(16)]
    return bytes([flags, shift, bits, lowest, *rates, 0x83, 50, 40, 30, 0x81, *[0x80] * 14])


def entry_bytes(
    index_step, mode, tensor, new, box=None, tables=None, number=0, tile_bits=8, scale=0, zero_before=False
):
    """(bytes in the index, payload) of an entry; tables: the bytes of a table set."""
    dtype, shape, data = tensor
    old_units, new_units = ww.units_of(dtype, data), ww.units_of(dtype, new)
    digests = [ww.digest_of_box(units, dtype, shape, box) for units in (old_units, new_units)]
    old, changed = (ww.in_box(units, dtype, shape, box).flatten() for units in (old_units, new_units))
    out = varint(index_step) + bytes([mode + (4 if box is not None else 0)])
    if box is not None:
        out += list_bytes([varint(start) + varint(extent) for start, extent in box])
    if mode == ww.WHOLE:
        payload = changed.tobytes()
        out += varint(len(payload))
    else:
        table_set = ww.read_tables(varint(1) + tables)[0]
        in_use = ww.Tables(table_set, 8 * old.itemsize, mode == ww.DENSE, scale if mode == ww.SPARSE else 0)
        out += varint(number) + (bytes([scale + 128]) if mode == ww.SPARSE else b"") + bytes([tile_bits])
        out += varint(int(np.count_nonzero(old != changed)))
        encode = (sparse_stream, dense_stream)[mode]
        tiles = range(0, len(old), 1 << tile_bits)
        streams = [encode(old[i : i + (1 << tile_bits)], changed[i : i + (1 << tile_bits)], in_use) for i in tiles]
        lengths = [len(stream) for stream in streams]
        payload = b"".join(streams)
        out += varint(len(lengths))
        if lengths:
            more = sum((length - min(lengths)) << 12 * i for i, length in enumerate(lengths))
            out += varint(min(lengths)) + bytes([12]) + more.to_bytes((12 * len(lengths) + 7) // 8, "little")
    return out + (bytes(16) if zero_before else digests[0]) + digests[1], payload


def delta_file(index, tables, payload, metadata=None, names=("index", "tables", "payload")):
    """A delta file; index without its hash."""
    parts = {"index": bytes(32) + index, "tables": tables, "payload": payload}
    parts = {name: ("U8", (len(parts[name]),), parts[name]) for name in names}
    data = ww.safetensors_bytes(parts, metadata or {"format": "weightwire-delta", "version": "1"})
    return hashed(data)


def hashed(data):
    """The file with the right hash put in."""
    begin = ww.parse_safetensors(data)[1]["index"][2]
    digest = hashlib.sha256(data[:begin] + data[begin + 32 :]).digest()
    return data[:begin] + digest + data[begin + 32 :]


def head_bytes(base, new, aliases=None, flags=1):
    """The index up to its layout change."""
    flags |= 4 if aliases else 0
    states = ww.state_digest(base) + ww.state_digest(new) if flags & 1 else b""
    head = varint(flags) + ww.layout_hash(ww.layout_of(base, aliases)) + states
    return head + (alias_bytes(aliases) if aliases else b"")


def whole_file(head, entries, tables=()):
    index = head + list_bytes([entry for entry, _ in entries])
    return delta_file(index, list_bytes(list(tables)), b"".join(payload for _, payload in entries))


def random_tensor(rng, dtype, shape):
    return dtype, shape, rng.bytes(ww.bytes_of(dtype, shape))


def with_changes(rng, tensor, share=0.1, box=None):
    """The bytes of the tensor with random units changed, by little or by much."""
    dtype, shape, data = tensor
    units = ww.units_of(dtype, data).copy()
    part = ww.in_box(units, dtype, shape, box)
    near = part + rng.integers(-3, 4, part.shape).astype(part.dtype)
    far = np.frombuffer(rng.bytes(part.nbytes), part.dtype).reshape(part.shape)
    changed = np.where(rng.random(part.shape) < 0.7, near, far)
    part[...] = np.where(rng.random(part.shape) < share, changed, part)
    return units.tobytes()


# --- the pieces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, (1 << 63) - 1, (1 << 64) - 1])
def test_varint(value):
    reader = ww.Reader(varint(value), "test")
    assert reader.varint() == value
    reader.end()


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80\x00", b"\xff\x00", b"\xff" * 10, b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"]
)
def test_bad_varint(data):
    with pytest.raises(ww.Damaged):
        ww.Reader(data, "test").varint()


def test_types():
    assert ww.TYPES["BOOL"].number == 1 and ww.TYPES["U64"].number == 22 and ww.TYPES["BF16"].number == 15
    assert [ww.TYPES[name].unit for name in ("F4", "F6_E3M2", "F8_E8M0", "F16", "F32", "C64")] == [1, 1, 1, 2, 4, 8]


def test_rate_of_code():
    rates = [ww.rate_of_code(code) for code in range(192)]
    assert rates[0] == 1 and rates[8] == 2 and rates[191] == 235 << 16
    assert rates == sorted(rates)


def test_survival():
    assert ww.survival(0) == 1 << 31
    assert ww.survival(ww.HORIZON) == 1 << 21
    edges = [t for piece in range(81) for t in range((piece << 17) - 3, (piece << 17) + 4) if 0 <= t <= ww.HORIZON]
    times = sorted({*edges, *range(ww.HORIZON - 5000, ww.HORIZON + 1), *range(0, ww.HORIZON, 997)})
    values = [ww.survival(t) for t in times]
    assert all(a > b for a, b in pairwise(values))
    assert all(ww.survival(t + (1 << 20)) == ww.survival(t) >> 1 for t in range(0, 9 << 20, 9973))


@pytest.mark.parametrize(
    "codes, tail", [([1], False), ([1], True), ([], True), ([192, 1], True), ([0, 7, 0, 9], False)]
)
def test_symbol_widths(codes, tail):
    widths = ww.symbol_widths(codes, tail, 14)
    assert sum(widths) == 65536 and len(widths) == (14 if tail else len(codes))
    assert all((width > 0) == (s >= len(codes) or codes[s] > 0) for s, width in enumerate(widths))


def test_no_symbols():
    assert ww.symbol_widths([], False, 14) == []


@pytest.mark.parametrize("width", [8, 16])
def test_buckets(width):
    buckets = set()
    for magnitude in range(1, (1 << (width - 1)) + 1):
        bucket, extra = bucket_of(magnitude)
        assert ww.magnitude(bucket, extra) == magnitude
        assert extra < 1 << ww.extra_bits(bucket)
        buckets.add(bucket)
    assert buckets == set(range(2 * (width - 2) + 2))


def test_order():
    ordinals = [ww.ordinal(unit, 8, True) for unit in range(256)]
    assert sorted(ordinals) == list(range(256)) and [ordinals[ordinal] for ordinal in ordinals] == list(range(256))
    assert ordinals[:128] == list(range(128)) and ordinals[128:] == list(range(255, 127, -1))
    assert all(ww.ordinal(unit, 8, False) == unit for unit in range(256))


def test_coder():
    rng = random.Random(3)
    numbers = [(rng.getrandbits(k), k) for k in (1, 32, 33, 62, 7, 31, 64, 5)]
    coder = ww.Coder(stream_of([event for bits, k in numbers for event in raw_events(bits, k)]))
    assert [coder.raw_bits(k) for _, k in numbers] == [bits for bits, _ in numbers]
    coder.end()


@pytest.mark.parametrize("size", [0, 1, 4, 4095, 4096, 12289])
def test_digest(size):
    def s(seed, n):
        mask = (1 << 64) - 1
        z = (seed + (n + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    data = np.random.default_rng(size).bytes(size)
    padded = data + bytes(-size % 4)
    lanes = [0, 0]
    for lane, seed in enumerate((0x7765696768740000, 0x7769726500000000)):
        for i in range(len(padded) // 4):
            a, b = max(1, s(seed, i % 1024) >> 35), s(seed + (1 << 32), i // 1024) >> 3
            lanes[lane] += a * b * int.from_bytes(padded[4 * i : 4 * i + 4], "little")
    assert ww.numbers(ww.digest_of_tensor(data)) == tuple(lane % ww.P for lane in lanes)


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "U8", "BF16", "F64"])
def test_digests_of_boxes_add_up(dtype):
    shape = (5, 3, 24)
    units = ww.units_of(dtype, random_tensor(np.random.default_rng(4), dtype, shape)[2])
    boxes = [
        [(rows, count), (0, 3), (columns, more)]
        for rows, count in ((0, 2), (2, 3))
        for columns, more in ((0, 8), (8, 16))
    ]
    parts = [ww.numbers(ww.digest_of_box(units, dtype, shape, box)) for box in boxes]
    whole = ww.numbers(ww.digest_of_tensor(units.tobytes()))
    assert tuple(sum(lane) % ww.P for lane in zip(*parts, strict=True)) == whole


def test_layout():
    tensors = {"ä": ("F32", (), bytes(4)), 'z"\\\n\x7f': ("BF16", (2, 3), bytes(12)), "a": ("U8", (0,), b"")}
    layout = ww.layout_of(tensors, {"tied": "a", "b": "a"})
    text = '{"aliases":{"b":"a","tied":"a"},"tensors":'
    text += '[["a","U8",[0]],["z\\"\\\\\\u000a\x7f","BF16",[2,3]],["ä","F32",[]]]}'
    assert ww.layout_text(layout) == text
    assert json.loads(text)["tensors"][1][0] == 'z"\\\n\x7f'
    assert ww.layout_hash(layout) == hashlib.sha256(text.encode()).digest()


def test_safetensors():
    tensors = {"a": ("F4", (3, 2), b"abc"), "b": ("U8", (), b"x"), "c": ("F64", (0, 7), b"")}
    data = ww.safetensors_bytes(tensors, {"k": "v"})
    assert ww.read_safetensors(data) == tensors
    assert ww.parse_safetensors(data)[0] == {"k": "v"}
    for bad in (data[:-1], data + b"x", data[:7], data.replace(b"[3,2]", b"[3,3]"), data.replace(b'"b"', b'"a"')):
        with pytest.raises(ww.Damaged):
            ww.read_safetensors(bad)


# --- whole deltas -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["F4", "I8", "BF16", "F32", "U64"])
@pytest.mark.parametrize("flags", [0, 1, 2, 3, 4, 5])
def test_round_trip(dtype, flags):
    """Every width of units in every mode, with waits beyond the horizon and empty, constant and full tiles."""
    rng = np.random.default_rng(flags)
    base = {name: random_tensor(rng, dtype, (50, 22)) for name in "abcd"} | {"e": (dtype, (0,), b"")}
    new = {
        name: (*tensor[:2], with_changes(rng, tensor, share))
        for (name, tensor), share in zip(base.items(), (0, 0.01, 0.3, 1, 1), strict=True)
    }
    tables = table_set_bytes(flags, shift=3)
    mode = ww.DENSE if flags & 2 else ww.SPARSE
    for scale in (-128, 0, 127):
        entries = [
            entry_bytes(min(i, 1), mode, base[name], new[name][2], tables=tables, scale=scale, tile_bits=8 + i)
            for i, name in enumerate(base)
        ]
        assert ww.decode_delta(whole_file(head_bytes(base, new), entries, [tables]), base) == new


@pytest.mark.parametrize("dtype", ["F6_E2M3", "BF16"])
def test_boxes(dtype):
    rng = np.random.default_rng(5)
    base = {"t": random_tensor(rng, dtype, (30, 40)), "u": random_tensor(rng, "U8", ())}
    data, entries, tables = base["t"][2], [], [table_set_bytes(1), table_set_bytes(2)]
    boxes = [[(20, 10), (0, 40)], [(0, 20), (8, 12)], [(0, 20), (0, 8)]]
    for mode, box in zip((ww.SPARSE, ww.DENSE, ww.WHOLE), boxes, strict=True):
        changed = with_changes(rng, base["t"], box=box)
        entries.append(entry_bytes(0, mode, base["t"], changed, box, tables[mode % 2], mode % 2))
        units, more = ww.units_of(dtype, data).copy(), ww.units_of(dtype, changed)
        ww.in_box(units, dtype, (30, 40), box)[...] = ww.in_box(more, dtype, (30, 40), box)
        data = units.tobytes()
    entries.append(entry_bytes(1, ww.WHOLE, base["u"], b"x", box=[]))
    new = {"t": (dtype, (30, 40), data), "u": ("U8", (), b"x")}
    head = head_bytes(base, new)
    assert ww.decode_delta(whole_file(head, entries, tables), base) == new
    overlapping = entry_bytes(0, ww.WHOLE, base["t"], data, [(19, 2), (0, 4)])
    with pytest.raises(ww.Damaged, match="overlap"):
        ww.decode_delta(whole_file(head, [*entries[:3], overlapping], tables), base)
    with pytest.raises(ww.Damaged, match="another entry"):
        ww.decode_delta(whole_file(head, [*entries[:3], entry_bytes(0, ww.WHOLE, base["t"], data)], tables), base)
    if dtype == "F6_E2M3":
        apart = varint(0) + bytes([4 + ww.WHOLE]) + list_bytes([varint(0) + varint(2), varint(2) + varint(4)])
        with pytest.raises(ww.Damaged, match="whole bytes"):
            ww.decode_delta(whole_file(head, [(apart + varint(6) + bytes(32), bytes(6))]), base)


def changed_layout():
    """A base, a state after it with another layout, and the delta between them, whole and as two parts."""
    rng = np.random.default_rng(6)
    base = {name: random_tensor(rng, "BF16", (9, 9)) for name in ("gone", "kept", "other", "reshaped")}
    new = {"kept": ("BF16", (9, 9), with_changes(rng, base["kept"])), "other": base["other"]}
    new |= {"new": random_tensor(rng, "F32", (3,)), "reshaped": random_tensor(rng, "BF16", (9,))}
    added = [
        name_bytes(name) + bytes([ww.TYPES[new[name][0]].number]) + list_bytes([varint(n) for n in new[name][1]])
        for name in ("new", "reshaped")
    ]
    aliases_after = {"tied": "new"}
    change = ww.layout_hash(ww.layout_of(new, aliases_after)) + list_bytes([varint(0), varint(3)]) + list_bytes(added)
    change += alias_bytes(aliases_after)
    tables = table_set_bytes(1, shift=7, bits=8, lowest=120)
    entries = [
        entry_bytes(0, ww.SPARSE, base["kept"], new["kept"][2], tables=tables),
        entry_bytes(1, ww.WHOLE, new["new"], new["new"][2], zero_before=True),
        entry_bytes(2, ww.WHOLE, new["reshaped"], new["reshaped"][2], zero_before=True),
    ]
    return base, new, change, entries, tables


def test_layout_change():
    base, new, change, entries, tables = changed_layout()
    head = head_bytes(base, new, {"old alias": "gone"}, flags=3) + change
    delta = whole_file(head, entries, [tables])
    assert ww.decode_delta(delta, base) == new
    assert ww.decode_delta(delta, base | {"old alias": base["gone"]}) == new
    with pytest.raises(ww.WrongBase):
        ww.decode_delta(delta, base | {"old alias": base["kept"]})
    with pytest.raises(ww.WrongBase):
        ww.decode_delta(delta, {name: base[name] for name in base if name != "gone"})
    with pytest.raises(ww.Damaged, match="without an entry"):
        ww.decode_delta(whole_file(head, entries[:2], [tables]), base)


def test_part():
    base, new, change, entries, tables = changed_layout()
    part = whole_file(head_bytes(base, new, flags=2) + change, entries[:2], [tables])
    assert ww.decode_delta(part, base) == {name: new[name] for name in ("kept", "new", "other")}
    moved = base | {"kept": ("BF16", (9, 9), base["kept"][2][::-1])}
    with pytest.raises(ww.WrongBase):
        ww.decode_delta(part, moved)


def test_aliases():
    rng = np.random.default_rng(7)
    base = {"kept": random_tensor(rng, "F16", (20, 20))}
    new = {"kept": ("F16", (20, 20), with_changes(rng, base["kept"]))}
    aliases = {"a": "kept", "z": "kept"}
    delta = whole_file(head_bytes(base, new, aliases), [entry_bytes(0, ww.WHOLE, base["kept"], new["kept"][2])])
    assert ww.decode_delta(delta, base) == new
    assert ww.decode_delta(delta, base | {"z": base["kept"]}) == new | {"z": new["kept"]}
    for other in (new["kept"], ("BF16", *base["kept"][1:])):
        with pytest.raises(ww.WrongBase):
            ww.decode_delta(delta, base | {"z": other})


# --- damage -------------------------------------------------------------------------------------


def small_delta():
    rng = np.random.default_rng(8)
    base = {"a": random_tensor(rng, "BF16", (40, 20)), "b": random_tensor(rng, "U8", (900,))}
    base["c"] = random_tensor(rng, "F32", (2, 3))
    new = {name: (*tensor[:2], with_changes(rng, tensor, 0.03)) for name, tensor in base.items()}
    tables = [table_set_bytes(1, shift=7, bits=8, lowest=120), table_set_bytes(2)]
    entries = [
        entry_bytes(0, ww.SPARSE, base["a"], new["a"][2], tables=tables[0]),
        entry_bytes(1, ww.DENSE, base["b"], new["b"][2], tables=tables[1], number=1),
        entry_bytes(1, ww.WHOLE, base["c"], new["c"][2]),
    ]
    return base, new, entries, tables


@pytest.mark.parametrize("flags", [0, 1])
def test_no_damage_gets_through(flags):
    """Bits are flipped and bytes are cut or put in, with the hash made right: refused, or decoded to the right bits."""
    base, new, entries, tables = small_delta()
    delta = whole_file(head_bytes(base, new, flags=flags), entries, tables)
    assert ww.decode_delta(delta, base) == new
    index, in_tables, payload = ww.open_delta(delta)
    rng, same = random.Random(flags), 0
    for _ in range(1500):
        parts = [bytearray(index), bytearray(in_tables), bytearray(payload)]
        part = rng.choice(parts)
        at = rng.randrange(len(part))
        action = rng.randrange(8)
        if action == 0:
            del part[at]
        elif action == 1:
            part.insert(at, rng.randrange(256))
        else:
            part[at] ^= 1 << rng.randrange(8)
        damaged = delta_file(*map(bytes, parts))
        try:
            assert ww.decode_delta(damaged, base) == new
            same += 1
        except ww.DeltaError:
            pass
    assert same < 300


def test_hash_finds_any_flip():
    base, new, entries, tables = small_delta()
    delta = whole_file(head_bytes(base, new), entries, tables)
    rng = random.Random(9)
    for _ in range(300):
        damaged = bytearray(delta)
        damaged[rng.randrange(len(delta))] ^= 1 << rng.randrange(8)
        with pytest.raises((ww.Damaged, ww.Unsupported)):
            ww.decode_delta(bytes(damaged), base)


def test_file():
    base, new, entries, tables = small_delta()
    index, in_tables, payload = ww.open_delta(whole_file(head_bytes(base, new), entries, tables))
    cases = [
        ({"metadata": {"format": "weightwire-delta", "version": "2"}}, ww.Unsupported),
        ({"metadata": {"format": "weightwire-delta", "version": "1", "more": ""}}, ww.Damaged),
        ({"metadata": {"format": "pt", "version": "1"}}, ww.Unsupported),
        ({"names": ("index", "payload", "tables")}, ww.Damaged),
        ({"names": ("index", "tables")}, ww.Damaged),
    ]
    for arguments, kind in cases:
        with pytest.raises(kind):
            ww.decode_delta(delta_file(index, in_tables, payload, **arguments), base)
    for parts in (
        (index + b"\0", in_tables, payload),
        (index, in_tables + b"\0", payload),
        (index, in_tables, payload + b"\0"),
    ):
        with pytest.raises(ww.Damaged):
            ww.decode_delta(delta_file(*parts), base)
    with pytest.raises(ww.Unsupported):
        ww.decode_delta(delta_file(b"\x09" + index[1:], in_tables, payload), base)


def test_command_line(tmp_path, capsys):
    base, new, entries, tables = small_delta()
    for kind in ("good/right", "bad/wrong"):
        folder = tmp_path / "vectors" / kind
        folder.mkdir(parents=True)
        (folder / "base.safetensors").write_bytes(ww.safetensors_bytes(base if kind == "good/right" else new))
        (folder / "delta.safetensors").write_bytes(whole_file(head_bytes(base, new), entries, tables))
        (folder / "expected.safetensors").write_bytes(ww.safetensors_bytes(new))
        (folder / "expected.txt").write_text("wrong-base\n")
    assert ww.main(["check", str(tmp_path / "vectors")]) == 0
    good = tmp_path / "vectors/good/right"
    out = tmp_path / "out.safetensors"
    assert ww.main(["apply", str(good / "base.safetensors"), str(good / "delta.safetensors"), str(out)]) == 0
    assert ww.read_safetensors(out) == new
    capsys.readouterr()
    assert ww.main(["digest", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == ww.state_digest(new).hex()
    assert ww.main(["apply", str(out), str(good / "delta.safetensors"), str(tmp_path / "none")]) == 1
    assert not (tmp_path / "none").exists()


# --- golden vectors -----------------------------------------------------------------------------


def vectors(kind):
    folders = sorted(folder for folder in (VECTORS / kind).glob("*") if folder.is_dir())
    missing = [pytest.param(None, marks=pytest.mark.skip(reason=f"there is no spec/vectors/{kind}"), id="none")]
    return [pytest.param(folder, id=folder.name) for folder in folders] or missing


@pytest.mark.parametrize("folder", vectors("good"))
def test_good_vector(folder):
    state = ww.decode_delta(
        (folder / "delta.safetensors").read_bytes(), ww.read_safetensors(folder / "base.safetensors")
    )
    assert state == ww.read_safetensors(folder / "expected.safetensors")


@pytest.mark.parametrize("folder", vectors("bad"))
def test_bad_vector(folder):
    kind = {kind.word: kind for kind in ww.DeltaError.__subclasses__()}[(folder / "expected.txt").read_text().strip()]
    with pytest.raises(kind):
        ww.decode_delta((folder / "delta.safetensors").read_bytes(), ww.read_safetensors(folder / "base.safetensors"))
