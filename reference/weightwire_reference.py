"""A second decoder of weightwire delta files, written from spec/FORMAT.md alone and in its order.

It is meant to be read next to the specification, and to test it; it is strict and slow. Each part is headed by the
section of the specification that it follows.

    python reference/weightwire_reference.py apply BASE DELTA OUT
    python reference/weightwire_reference.py digest FILE
    python reference/weightwire_reference.py check VECTORS_DIR
"""

import hashlib
import json
import math
import sys
from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np


class DeltaError(Exception):
    """The delta cannot be applied; the message says why in one sentence."""

    word = "refused"


class Damaged(DeltaError):
    """The file breaks a rule of the format, or exceeds a limit."""

    word = "damaged"


class WrongBase(DeltaError):
    """The file is for another base."""

    word = "wrong-base"


class Unsupported(DeltaError):
    """The file is no weightwire delta, or of another version, or uses what this one does not know."""

    word = "unsupported"


def require(condition, sentence, kind=Damaged):
    if not condition:
        raise kind(sentence)


# --- Limits -------------------------------------------------------------------------------------

MAX_TENSORS = 1 << 20
MAX_DIMENSIONS = 32
MAX_NAME_BYTES = 4096
MAX_TENSOR_BYTES = 1 << 56
MAX_ENTRIES = 1 << 22
MAX_BOXES = 1 << 14
MAX_TABLE_SETS = 1 << 16
MAX_TILES = 1 << 26
MAX_TILE_BYTES = 1 << 24
MAX_HEADER_BYTES = 100_000_000  # of safetensors


def within(value, limit, what):
    require(value <= limit, f"The delta has {what} beyond the limit: {value}, at most {limit}.")
    return value


# --- Units --------------------------------------------------------------------------------------


class Type(NamedTuple):
    name: str
    number: int
    bits: int  # of an element
    unit: int  # bytes


TYPES = {
    name: Type(name, number, bits, max(1, bits // 8))
    for number, (name, bits) in enumerate(
        [
            *[("BOOL", 8), ("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6), ("U8", 8), ("I8", 8), ("F8_E5M2", 8)],
            *[("F8_E4M3", 8), ("F8_E8M0", 8), ("F8_E4M3FNUZ", 8), ("F8_E5M2FNUZ", 8)],
            *[("I16", 16), ("U16", 16), ("F16", 16), ("BF16", 16), ("I32", 32), ("U32", 32), ("F32", 32)],
            *[("C64", 64), ("F64", 64), ("I64", 64), ("U64", 64)],
        ],
        start=1,
    )
}
TYPE_OF_NUMBER = {kind.number: kind.name for kind in TYPES.values()}


def bytes_of(dtype, shape):
    """The bytes of a tensor, or None if its elements do not fill whole bytes."""
    size, rest = divmod(math.prod(shape) * TYPES[dtype].bits, 8)
    return None if rest else size


def units_of(dtype, data):
    return np.frombuffer(data, f"<u{TYPES[dtype].unit}")


# --- safetensors --------------------------------------------------------------------------------


def parse_safetensors(data):
    """(metadata, {name: (dtype, shape, begin, end)}), offsets counted from the start of the file; strict."""

    def unique(pairs):
        require(len(dict(pairs)) == len(pairs), "A safetensors header has a key twice.")
        return dict(pairs)

    def natural(value):
        return type(value) is int and 0 <= value < 1 << 64

    require(len(data) >= 8, "A safetensors file is shorter than 8 bytes.")
    size = int.from_bytes(data[:8], "little")
    require(size <= min(MAX_HEADER_BYTES, len(data) - 8), "A safetensors header is too long.")
    require(data[8:9] == b"{", "A safetensors header does not begin with a brace.")
    try:
        header = json.loads(bytes(data[8 : 8 + size]).decode(), object_pairs_hook=unique)
        for name in header:
            name.encode()
    except (ValueError, RecursionError) as error:
        raise Damaged("A safetensors header is not JSON.") from error
    metadata = header.pop("__metadata__", {})
    require(
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()),
        "The metadata of a safetensors file is not a map of strings.",
    )
    tensors = {}
    for name, info in header.items():
        require(
            isinstance(info, dict) and set(info) == {"dtype", "shape", "data_offsets"},
            f"The safetensors entry of {name!r} has other fields than it should.",
        )
        dtype, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
        require(isinstance(dtype, str) and dtype in TYPES, f"The tensor {name!r} has an unknown type.")
        require(isinstance(shape, list) and all(map(natural, shape)), f"The tensor {name!r} has a bad shape.")
        require(
            isinstance(offsets, list) and len(offsets) == 2 and all(map(natural, offsets)),
            f"The tensor {name!r} has bad offsets.",
        )
        require(
            offsets[1] - offsets[0] == bytes_of(dtype, shape), f"The tensor {name!r} has another size than its shape."
        )
        tensors[name] = (dtype, tuple(shape), 8 + size + offsets[0], 8 + size + offsets[1])
    end = 8 + size
    for _, _, begin, after in sorted(tensors.values(), key=lambda tensor: tensor[2:]):
        require(begin == end, "The data of a safetensors file has a gap or an overlap.")
        end = after
    require(end == len(data), "A safetensors file does not end where its data ends.")
    return metadata, tensors


def read_safetensors(source):
    """{name: (dtype, shape, bytes)} of a file, given as a path or as its bytes."""
    data = source if isinstance(source, (bytes, bytearray, memoryview)) else Path(source).read_bytes()
    return {
        name: (dtype, shape, bytes(data[begin:end]))
        for name, (dtype, shape, begin, end) in parse_safetensors(data)[1].items()
    }


def safetensors_bytes(tensors, metadata=None):
    require("__metadata__" not in tensors, "A tensor cannot be written under the name __metadata__.")
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(bytes(data) for _, _, data in tensors.values())


# --- Layout -------------------------------------------------------------------------------------


class Layout(NamedTuple):
    tensors: dict  # name -> (dtype, shape), sorted
    aliases: dict  # alias -> kept name, sorted


def layout_of(tensors, aliases=None):
    """The layout of a state, or of anything that maps names to (dtype, shape, …)."""
    aliases = aliases or {}
    return Layout(
        {name: (tensors[name][0], tuple(tensors[name][1])) for name in sorted(tensors, key=str.encode)},
        {alias: aliases[alias] for alias in sorted(aliases, key=str.encode)},
    )


def quoted(text):
    escaped = (f"\\{c}" if c in '"\\' else f"\\u{ord(c):04x}" if c < " " else c for c in text)
    return '"' + "".join(escaped) + '"'


def layout_text(layout):
    aliases = ",".join(f"{quoted(alias)}:{quoted(kept)}" for alias, kept in layout.aliases.items())
    tensors = ",".join(
        f"[{quoted(name)},{quoted(dtype)},[{','.join(map(str, shape))}]]"
        for name, (dtype, shape) in layout.tensors.items()
    )
    return f'{{"aliases":{{{aliases}}},"tensors":[{tensors}]}}'


def layout_hash(layout):
    return hashlib.sha256(layout_text(layout).encode()).digest()


def check_layout(layout):
    within(len(layout.tensors) + len(layout.aliases), MAX_TENSORS, "tensors and aliases")
    reserved = "__metadata__" in layout.tensors or "__metadata__" in layout.aliases
    require(not reserved, "A tensor has the name __metadata__, which is reserved.")
    for name, (dtype, shape) in layout.tensors.items():
        within(len(name.encode()), MAX_NAME_BYTES, "bytes in a name")
        within(len(shape), MAX_DIMENSIONS, "dimensions")
        size = bytes_of(dtype, shape)
        require(size is not None, f"The tensor {name!r} does not fill whole bytes.")
        within(size, MAX_TENSOR_BYTES, "bytes in a tensor")
    for alias, kept in layout.aliases.items():
        require(alias not in layout.tensors, f"The alias {alias!r} is the name of a tensor too.")
        require(kept in layout.tensors, f"The alias {alias!r} stands for {kept!r}, which is no tensor.")


# --- File ---------------------------------------------------------------------------------------


def open_delta(data):
    """The three parts of a delta file, index without its hash; checks the hash."""
    metadata, tensors = parse_safetensors(data)
    require(metadata.get("format") == "weightwire-delta", "The file is not a weightwire delta.", Unsupported)
    require(metadata.get("version") == "1", "The delta is of another version than 1.", Unsupported)
    require(len(metadata) == 2, "The delta has metadata that it should not have.")
    require(set(tensors) == {"index", "tables", "payload"}, "The delta does not hold index, tables and payload.")
    for dtype, shape, _, _ in tensors.values():
        require(dtype == "U8" and len(shape) == 1, "A part of the delta is not a list of bytes.")
    (_, _, begin, after_index), (_, _, tables, after_tables), (_, _, payload, end) = (
        tensors[name] for name in ("index", "tables", "payload")
    )
    require(
        begin <= after_index == tables <= after_tables == payload <= end == len(data),
        "The parts of the delta are not in the order index, tables, payload.",
    )
    require(after_index - begin >= 32, "The index is too short to hold the hash of the file.")
    digest = hashlib.sha256(data[:begin])
    digest.update(data[begin + 32 :])
    require(digest.digest() == data[begin : begin + 32], "The hash of the delta file does not match its content.")
    return data[begin + 32 : after_index], data[tables:payload], data[payload:]


# --- Index --------------------------------------------------------------------------------------


class Reader:
    def __init__(self, data, what):
        self.data, self.at, self.what = bytes(data), 0, what

    def take(self, size):
        require(size <= len(self.data) - self.at, f"The {self.what} of the delta ends too early.")
        self.at += size
        return self.data[self.at - size : self.at]

    def byte(self):
        return self.take(1)[0]

    def varint(self):
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                require(byte or not shift, f"A number in the {self.what} is not in its shortest form.")
                require(value < 1 << 64, f"A number in the {self.what} is larger than 64 bits.")
                return value
        raise Damaged(f"A number in the {self.what} is longer than ten bytes.")

    def name(self):
        try:
            return self.take(within(self.varint(), MAX_NAME_BYTES, "bytes in a name")).decode()
        except UnicodeDecodeError as error:
            raise Damaged("A name in the delta is not UTF-8.") from error

    def list(self, item, limit, what):
        return [item() for _ in range(within(self.varint(), limit, what))]

    def end(self):
        require(self.at == len(self.data), f"The {self.what} of the delta has bytes after its end.")


def read_aliases(reader):
    pairs = reader.list(lambda: (reader.name(), reader.name()), MAX_TENSORS, "aliases")
    require(
        all(a[0].encode() < b[0].encode() for a, b in pairwise(pairs)), "The aliases of the delta are not ascending."
    )
    return dict(pairs)


def read_layout_change(reader, base):
    """The layout after."""
    hash_after = reader.take(32)
    names = list(base.tensors)
    removed = list(accumulate(reader.list(reader.varint, MAX_TENSORS, "tensors")))
    require(all(a < b for a, b in pairwise(removed)), "A tensor is removed twice.")
    require(not removed or removed[-1] < len(names), "A tensor is removed that the base does not have.")
    tensors = {name: base.tensors[name] for name in set(names) - {names[index] for index in removed}}

    def added():
        name, number = reader.name(), reader.byte()
        shape = tuple(reader.list(reader.varint, MAX_DIMENSIONS, "dimensions"))
        require(number in TYPE_OF_NUMBER, f"The tensor {name!r} is added with an unknown type.", Unsupported)
        require(name not in tensors, f"The tensor {name!r} is added, but is there already.")
        tensors[name] = (TYPE_OF_NUMBER[number], shape)

    reader.list(added, MAX_TENSORS, "tensors")
    after = layout_of(tensors, read_aliases(reader))
    check_layout(after)
    require(layout_hash(after) == hash_after, "The layout after the delta has another hash than it says.")
    return after


SPARSE, DENSE, WHOLE, GAPS = range(4)


class Entry(NamedTuple):
    name: str
    dtype: str
    shape: tuple
    mode: int
    box: list | None  # of (start, extent), in elements
    tables: "Tables | None"
    tile_size: int  # in units
    changed: int
    lengths: list  # of the tiles' streams, or of the one payload of a whole entry
    before: bytes
    after: bytes


def units_in(dtype, shape, box):
    size = bytes_of(dtype, shape if box is None else [extent for _, extent in box])
    return size // TYPES[dtype].unit


def read_box(reader, dtype, shape):
    box = reader.list(lambda: (reader.varint(), reader.varint()), MAX_DIMENSIONS, "dimensions")
    require(len(box) == len(shape), "A box has not the dimensions of its tensor.")
    for (start, extent), size in zip(box, shape, strict=True):
        require(extent > 0 and start + extent <= size, "A box is empty or reaches beyond its tensor.")
    if box and TYPES[dtype].bits < 8:
        whole = all(number * TYPES[dtype].bits % 8 == 0 for number in (*box[-1], shape[-1]))
        require(whole, "A box of a packed tensor does not begin and end on whole bytes.")
    return box


def read_tile_lengths(reader, mode, units, tile_size):
    count = within(reader.varint(), MAX_TILES, "tiles in an entry")
    require(count == -(-units // tile_size), "An entry has another number of tiles than its box.")
    if not count:
        return []
    smallest, bits = reader.varint(), reader.byte()
    require(bits <= 24, "The lengths of an entry's tiles have too many bits.")
    require(smallest or bits, "The lengths of an entry's tiles are all zero.")
    packed = np.frombuffer(reader.take((count * bits + 7) // 8), np.uint8)
    packed = np.unpackbits(packed, bitorder="little")
    require(not packed[count * bits :].any(), "There are bits after an entry's tile lengths.")
    more = packed[: count * bits].reshape(count, bits) @ (1 << np.arange(bits, dtype=np.int64))
    within(smallest + int(more.max()), MAX_TILE_BYTES, "bytes in a tile")
    require(mode != DENSE or smallest + int(more.min()), "A dense tile has no stream.")
    return (more + smallest).tolist()


def read_entries(reader, base, after, table_sets):
    entries, names, index = [], list(after.tensors), 0
    for _ in range(within(reader.varint(), MAX_ENTRIES, "entries")):
        index += reader.varint()
        require(index < len(names), "An entry is for a tensor that the layout does not have.")
        name = names[index]
        dtype, shape = after.tensors[name]
        flags = reader.byte()
        mode = flags & 3
        require(flags < 8, "An entry has an unknown mode.")
        box = read_box(reader, dtype, shape) if flags & 4 else None
        units = units_in(dtype, shape, box)
        tables, tile_size, changed = None, 0, 0
        if mode == WHOLE:
            lengths = [reader.varint()]
            require(lengths[0] == units * TYPES[dtype].unit, "A whole entry has another size than its box.")
        else:
            if mode != GAPS:
                number = reader.varint()
                require(number < len(table_sets), "An entry has a table set that is not there.")
                scale = reader.byte() - 128 if mode == SPARSE else 0
                tables = Tables(table_sets[number], 8 * TYPES[dtype].unit, mode == DENSE, scale)
            tile_bits = reader.byte()
            require(8 <= tile_bits <= 18, "An entry has a tile size outside of 8 to 18.")
            tile_size = 1 << tile_bits
            changed = reader.varint()
            require(changed <= units, "An entry changes more units than it has.")
            lengths = read_tile_lengths(reader, mode, units, tile_size)
        digests = reader.take(16), reader.take(16)
        require(all(number < P for digest in digests for number in numbers(digest)), "A digest is not below 2^61 - 1.")
        if base.tensors.get(name) != (dtype, shape):
            new = flags == WHOLE and not any(digests[0])
            require(new, f"The entry of the new tensor {name!r} is not one of a new tensor.")
        entries.append(Entry(name, dtype, shape, mode, box, tables, tile_size, changed, lengths, *digests))
    check_boxes(entries)
    return entries


def check_boxes(entries):
    """No two entries touch the same unit."""
    boxes = {}
    for entry in entries:
        boxes.setdefault(entry.name, []).append(entry.box)
    for name, of_tensor in boxes.items():
        within(len(of_tensor), MAX_BOXES, "boxes of one tensor")
        if len(of_tensor) == 1:
            continue
        require(None not in of_tensor, f"There is another entry besides the whole one of {name!r}.")
        starts, extents = np.moveaxis(np.array(of_tensor, np.int64).reshape(len(of_tensor), -1, 2), 2, 0)
        for i in range(1, len(of_tensor)):
            apart = (starts[:i] >= (starts + extents)[i]) | ((starts + extents)[:i] <= starts[i])
            require(apart.any(axis=1).all(), f"Two boxes of {name!r} overlap.")


# --- Tables -------------------------------------------------------------------------------------

SIGN_MAGNITUDE, DENSE_SET, UNIFORM = 1, 2, 4


class TableSet(NamedTuple):
    flags: int
    shift: int
    bits: int
    lowest: int
    rate_codes: list
    weights: list  # for each class: (weight codes, tail)


def read_tables(data):
    reader = Reader(data, "tables")

    def weights():
        header = reader.byte()
        count = header & 0x7F
        codes = [1] if count == 1 else list(reader.take(count))
        require(not codes or 0 < max(codes) <= 192, "A table set has weights that are too large or all zero.")
        return codes, header >= 0x80

    def table_set():
        flags, shift, bits, lowest = reader.take(4)
        require(flags < 8 and flags & 6 != 6, "A table set has unknown flags.")
        require(bits <= 8 and shift < 64, "A table set has an impossible class rule.")
        rate_codes = list(reader.take(0 if flags & DENSE_SET else 1 if flags & UNIFORM else 16))
        require(max(rate_codes, default=0) <= 191, "A table set has a rate code above 191.")
        return TableSet(flags, shift, bits, lowest, rate_codes, [weights() for _ in range(16)])

    sets = reader.list(table_set, MAX_TABLE_SETS, "table sets")
    reader.end()
    return sets


M = (128, 140, 152, 166, 181, 197, 215, 235)


def rate_of_code(code):
    return (M[code & 7] << (code >> 3)) >> 7


def symbol_widths(codes, tail, symbols):
    """The widths of the first symbols of a class, in units of 2^-16; those that are not named have width 0."""
    weights = [rate_of_code(code - 1) if code else 0 for code in codes]
    behind = symbols - len(codes) if tail else 0
    if not codes and not behind:
        return []
    total = sum(weights)
    widths = [max(1, g * (65536 - behind) // total) if g else 0 for g in weights] + [1] * behind
    widths[widths.index(max(widths))] += 65536 - sum(widths)
    return widths


class Tables:
    """A table set in use: for units of a width, in an entry of a scale."""

    def __init__(self, table_set, width, dense, scale):
        require(bool(table_set.flags & DENSE_SET) == dense, "An entry has a table set of the other mode.")
        require(
            table_set.shift < width and table_set.shift + table_set.bits <= width,
            "A table set takes its class from bits that the units do not have.",
        )
        self.width, self.set = width, table_set
        self.sign_magnitude = bool(table_set.flags & SIGN_MAGNITUDE)
        symbols = 2 * (width - 2) + 2 + dense
        require(max(len(codes) for codes, _ in table_set.weights) <= symbols, "A table set has too many symbols.")
        widths = [symbol_widths(codes, tail, symbols) for codes, tail in table_set.weights]
        self.starts = [[start << 16 for start in accumulate(of_class, initial=0)] for of_class in widths]
        rates = [rate_of_code(min(191, max(0, code + scale))) for code in table_set.rate_codes]
        self.rates = np.array(rates * 16 if table_set.flags & UNIFORM else rates, np.int64)

    def classes(self, units):
        masked = (units >> units.dtype.type(self.set.shift)) & units.dtype.type((1 << self.set.bits) - 1)
        return np.clip(masked.astype(np.int64) - self.set.lowest, 0, 15)


# --- Entropy coder ------------------------------------------------------------------------------

LOW = (1 << 32) - 1


class Coder:
    def __init__(self, stream):
        size = len(stream) if len(stream) <= 8 else 5 + (len(stream) - 5) % 4
        self.words = np.frombuffer(stream[: len(stream) - size], "<u4").tolist()
        self.x = int.from_bytes(stream[len(stream) - size :], "little")

    def event(self, start, width):
        self.x = width * (self.x >> 32) + (self.x & LOW) - start
        if self.x <= LOW and self.words:
            self.x = (self.x << 32) + self.words.pop()

    def raw_bits(self, count):
        if count > 32:
            low = self.raw_bits(32)
            return low | self.raw_bits(count - 32) << 32
        bits = (self.x & LOW) >> (32 - count)
        self.event(bits << (32 - count), 1 << (32 - count))
        return bits

    def symbol(self, starts):
        """starts: where each symbol of the class starts, and at last 2^32."""
        require(len(starts) > 1, "A unit has a symbol whose class has none.")
        symbol = bisect_right(starts, self.x & LOW) - 1
        self.event(starts[symbol], starts[symbol + 1] - starts[symbol])
        return symbol

    def end(self):
        require(self.x == 1 and not self.words, "A tile's stream does not end as it should.")


# --- Positions ----------------------------------------------------------------------------------

MIDDLE = 1 << 31
HORIZON = 10 << 20
K = (2147483648, 1969251188, 1805811301, 1655936265, 1518500250, 1392470869, 1276901417, 1170923762, 1073741824)


def survival(t):
    """F(t), the chance that nothing has changed after a time t, in units of 2^-31."""
    j = (t >> 17) & 7
    return (K[j] - (((K[j] - K[j + 1]) * (t & 0x1FFFF)) >> 17)) >> (t >> 20)


def decode_sparse(stream, units, tables):
    """{position in the tile: new unit}"""
    changes = {}
    if not stream:
        return changes
    coder = Coder(stream)
    classes = tables.classes(units)
    times = [0, *np.cumsum(tables.rates[classes]).tolist()]
    count, end, a = len(units), times[-1], 0
    while True:
        z = times[a]
        limit = min(end - z, HORIZON)
        position = coder.x & LOW
        up = position < MIDDLE
        v = MIDDLE - 1 - position if up else position - MIDDLE
        if v < survival(limit):
            coder.event(MIDDLE - survival(limit), 2 * survival(limit))
            if limit == end - z:
                break
            a = bisect_left(times, z + HORIZON)
        else:
            # The last unit i with v < F(T(i) - z).
            i = bisect_left(times, True, a, count, key=lambda t: survival(min(t - z, HORIZON)) <= v) - 1
            first, last = survival(times[i] - z), survival(min(times[i + 1] - z, HORIZON))
            coder.event(MIDDLE - first if up else MIDDLE + last, first - last)
            bucket = coder.symbol(tables.starts[classes[i]])
            extra = coder.raw_bits(extra_bits(bucket)) if extra_bits(bucket) else 0
            changes[i] = moved(int(units[i]), magnitude(bucket, extra), up, tables)
            a = i + 1
    coder.end()
    return changes


# --- Values -------------------------------------------------------------------------------------


def ordinal(unit, width, sign_magnitude):
    """The ordinal of a unit; its own inverse."""
    return unit ^ ((1 << (width - 1)) - 1) if sign_magnitude and unit >> (width - 1) else unit


def extra_bits(bucket):
    return bucket // 2 - 1 if bucket >= 4 else 0


def magnitude(bucket, extra):
    return 1 + (bucket if bucket < 4 else ((2 + (bucket & 1)) << (bucket // 2 - 1)) + extra)


def moved(unit, distance, up, tables):
    start = ordinal(unit, tables.width, tables.sign_magnitude)
    end = (start + distance if up else start - distance) % (1 << tables.width)
    return ordinal(end, tables.width, tables.sign_magnitude)


# --- Dense tiles --------------------------------------------------------------------------------


def decode_dense(stream, units, tables):
    """{position in the tile: new unit}"""
    changes, coder = {}, Coder(stream)
    for i, unit_class in enumerate(tables.classes(units).tolist()):
        symbol = coder.symbol(tables.starts[unit_class])
        if symbol:
            raw = coder.raw_bits(extra_bits(symbol - 1) + 1)
            changes[i] = moved(int(units[i]), magnitude(symbol - 1, raw >> 1), not raw & 1, tables)
    coder.end()
    return changes


# --- Gap tiles ----------------------------------------------------------------------------------


def decode_gaps(stream, units, _):
    """{position in the tile: new unit}"""
    changes = {}
    if not stream:
        return changes
    reader = Reader(stream, "tile")
    head = reader.varint()
    count, size = head >> 1, 2 if head & 1 else 1
    require(0 < count <= len(units), "A tile has no changes, or more than it has units.")
    steps = reader.take(-(-count // 2))
    codes = [code for byte in steps for code in (byte & 15, byte >> 4)]
    require(len(codes) == count or not codes.pop(), "A tile has a code for a change that it does not have.")
    positions, at = [], 0
    while len(positions) < count:
        gap = int.from_bytes(reader.take(size), "little")
        at += gap
        if gap < (1 << 8 * size) - 1:
            require(at < len(units), "A change lies behind the end of its tile.")
            positions.append(at)
            at += 1
    for i, code in zip(positions, codes, strict=True):
        step = code // 2 + 1 if code < 14 else 8 + reader.varint()
        changes[i] = int(units[i]) + (-step if code & 1 else step)
        require(0 <= changes[i] < 1 << 8 * units.itemsize, "A step leads to a number that units cannot hold.")
    reader.end()
    return changes


# --- Digest -------------------------------------------------------------------------------------

P = (1 << 61) - 1
SEEDS = (0x7765696768740000, 0x7769726500000000)
BLOCK = 4096  # bytes


def split_mix(seed, n):
    """S(seed, n) for an array of numbers n."""
    z = np.uint64(seed) + (np.asarray(n, np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


A = [np.maximum(1, split_mix(seed, np.arange(1024)) >> np.uint64(35)) for seed in SEEDS]


def block_keys(which, count):
    keys = (split_mix(SEEDS[which] + (1 << 32), np.arange(count)) >> np.uint64(3)).tolist()
    return [1 if key in (0, P) else key for key in keys]


def digest_of_tensor(data):
    """The 16 bytes of the digest of a tensor's bytes."""
    padded = np.zeros(-(-len(data) // BLOCK) * BLOCK, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    halves = padded.view("<u2").reshape(-1, 1024, 2).astype(np.uint64)  # 2^29 · 2^16 · 1024 fits in 64 bits
    digest = b""
    for which in (0, 1):
        low, high = (halves[:, :, half] @ A[which] for half in (0, 1))
        keys = block_keys(which, len(halves))
        terms = (key * (a + (b << 16)) for key, a, b in zip(keys, low.tolist(), high.tolist(), strict=True))
        digest += (sum(terms) % P).to_bytes(8, "little")
    return digest


def numbers(digest):
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def in_box(units, dtype, shape, box):
    """A view of the units of a box; the whole tensor's if there is none."""
    if box is None:
        return units
    bits = TYPES[dtype].bits
    if bits < 8:  # the last dimension in bytes
        shape = (*shape[:-1], shape[-1] * bits // 8)
        box = [*box[:-1], tuple(number * bits // 8 for number in box[-1])]
    return units.reshape(shape)[(..., *(slice(start, start + extent) for start, extent in box))]


def digest_of_box(units, dtype, shape, box):
    """The digest of a box of a tensor, given all units of the tensor."""
    if box is None:
        return digest_of_tensor(units.tobytes())
    only = np.zeros_like(units)
    in_box(only, dtype, shape, box)[...] = in_box(units, dtype, shape, box)
    return digest_of_tensor(only.tobytes())


# --- State digest -------------------------------------------------------------------------------


def state_digest(tensors):
    """Of a state without the names that are aliases."""
    layout = layout_of(tensors)
    digests = b"".join(digest_of_tensor(tensors[name][2]) for name in layout.tensors)
    return hashlib.sha256(layout_hash(layout) + digests).digest()


# --- Payload and Applying a delta ---------------------------------------------------------------


def without_aliases(base, aliases):
    """The base without the names that the delta says are aliases."""
    for alias, kept in aliases.items():
        if alias in base:
            same = kept in base and base[alias] == base[kept]
            require(same, f"The base does not hold the same under {alias!r} as under {kept!r}.", WrongBase)
    return {name: tensor for name, tensor in base.items() if name not in aliases}


DECODERS = {SPARSE: decode_sparse, DENSE: decode_dense, GAPS: decode_gaps}


def decode_entry(entry, units, payload):
    """The new units of the entry's box, in order; units: the old ones."""
    if entry.mode == WHOLE:
        return units_of(entry.dtype, payload)
    new, changed, at, decode = units.copy(), 0, 0, DECODERS[entry.mode]
    for tile, length in enumerate(entry.lengths):
        first = tile * entry.tile_size
        changes = decode(payload[at : at + length], units[first : first + entry.tile_size], entry.tables)
        for i, unit in changes.items():
            new[first + i] = unit
        changed += len(changes)
        at += length
    require(changed == entry.changed, f"An entry of {entry.name!r} changes another number of units than it says.")
    return new


def decode_delta(delta_bytes, base):
    """The state after the delta; base and result map names to (dtype, shape, bytes).

    A part of a delta, without state digests, may leave out new tensors.
    """
    # 1 and 2: the file, its structure, its limits; the base's layout, which the structure depends on.
    index, tables, payload = open_delta(delta_bytes)
    table_sets = read_tables(tables)
    reader = Reader(index, "index")
    flags = reader.varint()
    require(flags < 8, "The delta has flags that are not known.", Unsupported)
    base_hash = reader.take(32)
    state_before, state_after = (reader.take(32), reader.take(32)) if flags & 1 else (None, None)
    aliases = read_aliases(reader) if flags & 4 else {}
    require(aliases or not flags & 4, "The list of the delta's aliases is empty.")
    old = without_aliases(base, aliases)
    layout = layout_of(old, aliases)
    require(layout_hash(layout) == base_hash, "The delta is for a base of another layout.", WrongBase)
    check_layout(layout)
    after = read_layout_change(reader, layout) if flags & 2 else layout
    entries = read_entries(reader, layout, after, table_sets)
    reader.end()
    require(
        sum(sum(entry.lengths) for entry in entries) == len(payload), "The payload is not as long as the entries say."
    )
    new_tensors = {name for name in after.tensors if after.tensors[name] != layout.tensors.get(name)}
    missing = new_tensors - {entry.name for entry in entries}
    require(not missing or not flags & 1, "A whole delta has a new tensor without an entry.")

    # 3: the bits of the base.
    require(not flags & 1 or state_digest(old) == state_before, "The delta is for a base of other bits.", WrongBase)
    units_before = {name: units_of(old[name][0], old[name][2]) for name in old}
    for entry in entries:
        if entry.name not in new_tensors:
            digest = digest_of_box(units_before[entry.name], entry.dtype, entry.shape, entry.box)
            require(digest == entry.before, f"The base has other bits in {entry.name!r}.", WrongBase)

    # 4 and 5: the new bits.
    new = {name: old[name] for name in after.tensors if name not in new_tensors}
    units_after, at = {}, 0
    for entry in entries:
        stream = payload[at : at + sum(entry.lengths)]
        at += len(stream)
        if entry.name in new_tensors:
            units_after[entry.name] = units_of(entry.dtype, stream)
        else:
            if entry.name not in units_after:
                units_after[entry.name] = units_before[entry.name].copy()
            box = in_box(units_after[entry.name], entry.dtype, entry.shape, entry.box)
            box[...] = decode_entry(entry, box.flatten(), stream).reshape(box.shape)
        digest = digest_of_box(units_after[entry.name], entry.dtype, entry.shape, entry.box)
        require(digest == entry.after, f"The new bits of {entry.name!r} have another digest than the delta says.")
    for name, units in units_after.items():
        new[name] = (*after.tensors[name], units.tobytes())
    require(not flags & 1 or state_digest(new) == state_after, "The new state has another digest than the delta says.")

    # Names that the base held its tied tensors under, too.
    for alias, kept in after.aliases.items():
        if alias in base and kept in new:
            new[alias] = new[kept]
    return {name: new[name] for name in sorted(new, key=str.encode)}


# --- Command line -------------------------------------------------------------------------------


def check_vectors(directory):
    """A line for each vector that does not do as it should, and the number of vectors."""
    wrong, count = [], 0
    for folder in sorted(folder for kind in ("good", "bad") for folder in Path(directory).glob(f"{kind}/*/")):
        base, delta = read_safetensors(folder / "base.safetensors"), (folder / "delta.safetensors").read_bytes()
        good = folder.parent.name == "good"
        expected = "decoded" if good else (folder / "expected.txt").read_text().strip()
        try:
            result, outcome = decode_delta(delta, base), "decoded"
            if good and result != read_safetensors(folder / "expected.safetensors"):
                outcome = "decoded to other bits"
        except DeltaError as error:
            outcome = error.word
            expected = expected if error.word == expected else f"{expected} ({error})"
        if outcome != expected:
            wrong.append(f"{folder.parent.name}/{folder.name}: {outcome}, not {expected}")
        count += 1
    return wrong, count


def main(arguments):
    try:
        match arguments:
            case ["apply", base, delta, out]:
                state = decode_delta(Path(delta).read_bytes(), read_safetensors(base))
                Path(out).write_bytes(safetensors_bytes(state))
            case ["digest", file]:
                tensors = read_safetensors(file)
                print(state_digest(tensors).hex())
                for name in layout_of(tensors).tensors:
                    print(digest_of_tensor(tensors[name][2]).hex(), name)
            case ["check", directory]:
                wrong, count = check_vectors(directory)
                print(*wrong, f"{count - len(wrong)} of {count} vectors do as they should", sep="\n")
                return 1 if wrong or not count else 0
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (DeltaError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
