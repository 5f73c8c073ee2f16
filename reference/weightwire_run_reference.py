"""A second reader of weightwire runs, written from spec/PROTOCOL.md and in its order.

It reads a run that is a directory, checks every object on the way, and writes a version out as one safetensors file. It
never writes to the run: it has no lease, so it works on copies and quiet runs. weightwire_reference.py decodes the
deltas.

    python reference/weightwire_run_reference.py versions RUN
    python reference/weightwire_run_reference.py checkout RUN VERSION OUT
    python reference/weightwire_run_reference.py check OBJECTS_DIR
"""

import hashlib
import json
import re
import sys
from pathlib import Path

import numpy as np
from weightwire_reference import (
    Damaged,
    DeltaError,
    Unsupported,
    check_layout,
    decode_delta,
    layout_of,
    layout_text,
    read_safetensors,
    require,
    safetensors_bytes,
    state_digest,
)

FEATURES = {"pieces"}  # those that this reader knows
MAX_VERSION = (1 << 63) - 1

# --- JSON ---------------------------------------------------------------------------------------


def parse_object(data, object_format):
    """The JSON object in these bytes, as a dict; its keys are checked by who asks for them."""

    def unique(pairs):
        require(len(dict(pairs)) == len(pairs), "An object has a key twice.")
        return dict(pairs)

    def no_constant(_):
        raise ValueError

    try:
        text = data.decode()
        fields = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
        json.dumps(fields, ensure_ascii=False).encode()  # no unpaired surrogates
    except (ValueError, RecursionError) as error:
        raise Damaged("An object is not JSON in UTF-8.") from error
    require(isinstance(fields, dict), "An object is not a JSON object.")
    require(text_of(fields, "format") == object_format, f"An object is not a {object_format}.")
    return fields


def field(fields, key):
    require(key in fields, f"An object has no {key!r}.")
    return fields[key]


def text_of(fields, key):
    require(isinstance(field(fields, key), str), f"The {key!r} of an object is not a string.")
    return fields[key]


def matching(fields, key, pattern):
    text = text_of(fields, key)
    require(re.fullmatch(pattern, text, re.ASCII), f"The {key!r} of an object is not of the form it should be.")
    return text


def number_of(fields, key):
    value = int(matching(fields, key, "0|[1-9][0-9]{0,19}"))
    require(value < 1 << 64, f"The {key!r} of an object is too large.")
    return value


def hash_of(fields, key):
    return matching(fields, key, "[0-9a-f]{64}")


def id_of(fields, key):
    return matching(fields, key, "[0-9a-f]{32}")


def list_of(fields, key, kind):
    values = field(fields, key)
    require(isinstance(values, list), f"The {key!r} of an object is not a list.")
    require(all(type(value) is kind for value in values), f"The {key!r} of an object has a member of another type.")
    return values


def or_null(read, fields, key):
    return None if field(fields, key) is None else read(fields, key)


def object_of(fields, key):
    require(isinstance(field(fields, key), dict), f"The {key!r} of an object is not an object.")
    return fields[key]


TIME = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z"


def object_hash(data):
    chunk = 4 << 20
    chunks = (hashlib.sha256(data[at : at + chunk]).digest() for at in range(0, len(data), chunk))
    return hashlib.sha256(b"".join(chunks)).hexdigest()


# --- Keys ---------------------------------------------------------------------------------------

NUMBER_IN_KEY = "[0-9]{20}"
ANCHOR_FOLDER = f"anchors/{NUMBER_IN_KEY}/[0-9a-f]{{32}}"


def in_key(version):
    return f"{version:020}"


def delta_folder(version):
    return f"deltas/{in_key(version - 1)}-{in_key(version)}/"


def check_name(name):
    """The rules of keys, for what will be a path below a directory."""
    segments = name.split("/")
    require(
        len(name) <= 512
        and all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", segment) for segment in segments)
        and all(len(segment) <= 255 for segment in segments)
        and name != "anchor.json",
        f"{name!r} cannot be a file of an anchor.",
    )


# --- run.json -----------------------------------------------------------------------------------


def check_features(fields, key):
    for feature in list_of(fields, key, str):
        require(feature in FEATURES, f"The feature {feature!r} is not known: a newer reader is needed.", Unsupported)


def parse_run(data):
    fields = parse_object(data, "weightwire-run")
    version = field(fields, "format_version")
    require(type(version) is int and version >= 0, "The format version is not a whole number.")
    require(version == 1, f"Format version {version} is not known: a newer reader is needed.", Unsupported)
    check_features(fields, "read_features")
    list_of(fields, "write_features", str)
    id_of(fields, "run_id")
    require(type(field(fields, "single_writer")) is bool, "The 'single_writer' of a run is neither true nor false.")
    return fields


# --- Records ------------------------------------------------------------------------------------


def parse_record(data):
    fields = parse_object(data, "weightwire-record")
    check_features(fields, "read_features")
    id_of(fields, "run_id")
    version = number_of(fields, "version")
    require(version <= MAX_VERSION, "The version of a record is too large.")
    parent = or_null(hash_of, fields, "parent_hash")
    require((version == 0) == (parent is None), "Version 0, and no other, has no parent.")
    number_of(fields, "step")
    matching(fields, "time", TIME)
    id_of(fields, "writer_id")
    hash_of(fields, "layout_hash")
    hash_of(fields, "digest")
    number_of(fields, "changed_elements")
    total, start = number_of(fields, "total_delta_bytes"), number_of(fields, "chain_start")
    delta, own = or_null(object_of, fields, "delta"), 0
    if delta is not None:
        require(version > 0, "Version 0 has a delta.")
        for part in list_of(delta, "parts", dict):
            key = f"{delta_folder(version)}{hash_of(part, 'hash')}.safetensors"
            require(text_of(part, "key") == key, "A part of a record is not a part of its version.")
            own += number_of(part, "bytes")
    require(own <= total, "The parts of a record have more bytes than all parts up to it.")
    require(version > 0 or total == 0, "Version 0 has bytes of deltas.")
    require(
        start == version if delta is None else start < version, "The 'chain_start' of a record does not fit its delta."
    )
    anchor = or_null(object_of, fields, "anchor")
    if anchor is not None:
        require(number_of(anchor, "version") <= version, "A record names an anchor of a later version.")
        id_of(anchor, "id")
        number_of(anchor, "bytes")
        hash_of(anchor, "manifest_hash")
    own_anchor = anchor is not None and int(anchor["version"]) == version
    require(delta is not None or own_anchor, "A record has neither a delta nor an anchor of its own.")
    return fields


# --- Anchors ------------------------------------------------------------------------------------


def check_places(file, assembled):
    places, total = list_of(file, "places", dict), 0
    require(places, "A piece of an anchor has no places.")
    for place in places:
        which, offset, row_bytes, rows, stride = (
            number_of(place, key) for key in ("file", "offset_bytes", "row_bytes", "rows", "stride_bytes")
        )
        require(row_bytes and rows, "A place of a piece has no bytes.")
        require(which < len(assembled), "A place of a piece is in no file.")
        require(rows == 1 or stride >= row_bytes, "The rows of a place overlap.")
        end = offset + (rows - 1) * stride + row_bytes
        require(end <= int(assembled[which]["bytes"]), "A place of a piece ends outside of its file.")
        total += row_bytes * rows
    require(total == int(file["bytes"]), "The places of a piece do not have as many bytes as it has.")


def parse_anchor(data):
    fields = parse_object(data, "weightwire-anchor")
    for key in ("run_id", "id"):
        id_of(fields, key)
    for key in ("version", "total_delta_bytes"):
        number_of(fields, key)
    for key in ("layout_hash", "digest"):
        hash_of(fields, key)
    assembled = list_of(fields, "assembled", dict) if "assembled" in fields else []
    files = list_of(fields, "files", dict)
    for file in (*assembled, *files):
        check_name(text_of(file, "name"))
        number_of(file, "bytes")
    for file in assembled:
        require(file["name"].endswith(".safetensors"), "A file that is put together from pieces holds no weights.")
    given = [0] * len(assembled)
    for file in files:
        hash_of(file, "hash")
        if "places" in file:
            check_places(file, assembled)
            for place in file["places"]:
                given[int(place["file"])] += int(place["row_bytes"]) * int(place["rows"])
    require(given == [int(file["bytes"]) for file in assembled], "The pieces do not make up a file.")
    names = [file["name"] for file in (*assembled, *files)]
    require(len(set(names)) == len(names), "An anchor has a file twice.")
    folders = {"/".join(name.split("/")[:depth]) for name in names for depth in range(1, name.count("/") + 1)}
    require(not folders & set(names), "A file of an anchor is also a folder.")
    require(sum(int(file["bytes"]) for file in files) < 1 << 64, "The files of an anchor have too many bytes.")
    return fields


# --- Leases -------------------------------------------------------------------------------------


def parse_lease(data):
    fields = parse_object(data, "weightwire-lease")
    id_of(fields, "run_id")
    id_of(fields, "id")
    name = text_of(fields, "name")
    require(
        len(name.encode()) <= 128 and not re.search(r"[\x00-\x1f\x7f-\x9f]", name),
        "The name of a lease is too long, or has control characters.",
    )
    or_null(number_of, fields, "version")
    or_null(number_of, fields, "needs_deltas_after")
    or_null(lambda fields, key: matching(fields, key, ANCHOR_FOLDER), fields, "needs_anchor")
    seconds = field(fields, "ttl_seconds")
    require(type(seconds) is int and 60 <= seconds <= 86400, "A lease has another life than it may have.")
    return fields


# --- Marks --------------------------------------------------------------------------------------

MARKED = f"{ANCHOR_FOLDER}/|deltas/{NUMBER_IN_KEY}-{NUMBER_IN_KEY}/([A-Za-z0-9_-][A-Za-z0-9._-]*)?"


def parse_mark(data):
    fields = parse_object(data, "weightwire-mark")
    id_of(fields, "run_id")
    id_of(fields, "id")
    for key in list_of(fields, "keys", str):
        require(re.fullmatch(MARKED, key, re.ASCII), f"A mark names {key!r}, which is nothing that may be removed.")
    return fields


PARSERS = {
    "run": parse_run,
    "record": parse_record,
    "anchor": parse_anchor,
    "lease": parse_lease,
    "mark": parse_mark,
}

# --- Duties of a reader -------------------------------------------------------------------------


class Run:
    """A run in a directory."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.id = parse_run(self.get("run.json"))["run_id"]
        self.records = []
        while (self.directory / self.key_of_record(len(self.records))).is_file():
            self.records.append(self.read_record(len(self.records)))

    @staticmethod
    def key_of_record(version):
        return f"versions/{in_key(version)}.json"

    def get(self, key):
        return (self.directory / key).read_bytes()

    def of_this_run(self, fields):
        require(fields["run_id"] == self.id, "An object belongs to another run.")
        return fields

    def read_record(self, version):
        record = self.of_this_run(parse_record(self.get(self.key_of_record(version))))
        require(int(record["version"]) == version, "A record is of another version than its key.")
        if version:
            before, delta = self.records[-1], record["delta"]
            parent = hashlib.sha256(self.get(self.key_of_record(version - 1))).hexdigest()
            require(record["parent_hash"] == parent, "The parent of a record is another one.")
            own = sum(int(part["bytes"]) for part in delta["parts"]) if delta else 0
            require(
                int(record["total_delta_bytes"]) == int(before["total_delta_bytes"]) + own,
                "The bytes of deltas do not add up.",
            )
            if delta:
                require(record["chain_start"] == before["chain_start"], "A chain begins at two versions.")
            if delta and not delta["parts"]:
                same = record["digest"] == before["digest"] and record["layout_hash"] == before["layout_hash"]
                require(same, "A record without parts has another state than the one before.")
        return record

    def read_layout(self, record):
        text = self.get(f"layouts/{record['layout_hash']}.json")
        require(hashlib.sha256(text).hexdigest() == record["layout_hash"], "A layout has another hash than its key.")
        parsed = json.loads(text)
        layout = layout_of({name: (dtype, shape) for name, dtype, shape in parsed["tensors"]}, parsed["aliases"])
        check_layout(layout)
        require(layout_text(layout).encode() == text, "A layout is not in its canonical form.")
        return layout

    def read_parts(self, record):
        for part in record["delta"]["parts"]:
            data = self.get(part["key"])
            whole = len(data) == int(part["bytes"]) and object_hash(data) == part["hash"]
            require(whole, f"{part['key']} is damaged.")
            yield data

    def anchors_of(self, version):
        """The folders of the anchors of a version that exist."""
        return sorted(self.directory.glob(f"anchors/{in_key(version)}/*/anchor.json"))

    def read_anchor(self, path, record):
        """{file name: bytes}: what the anchor is, once it is written out."""
        data = path.read_bytes()
        manifest = self.of_this_run(parse_anchor(data))
        folder = f"anchors/{in_key(int(manifest['version']))}/{manifest['id']}"
        require(path.parent == self.directory / folder, "An anchor.json is of another anchor than its key.")
        for key in ("version", "layout_hash", "digest", "total_delta_bytes"):
            require(manifest[key] == record[key], "An anchor.json does not fit the record of its version.")
        for other in self.records:
            named = other["anchor"]
            if named and (named["version"], named["id"]) == (manifest["version"], manifest["id"]):
                hashed = hashlib.sha256(data).hexdigest()
                require(named["manifest_hash"] == hashed, "An anchor.json is another than the one a record names.")
        files, assembled = {}, [bytearray(int(file["bytes"])) for file in manifest.get("assembled", [])]
        for file in manifest["files"]:
            content = (path.parent / file["name"]).read_bytes()
            whole = len(content) == int(file["bytes"]) and object_hash(content) == file["hash"]
            require(whole, f"The file {file['name']} of an anchor is damaged.")
            if "places" not in file:
                files[file["name"]] = content
                continue
            at = 0
            for place in file["places"]:
                which, offset, size, rows, stride = (
                    int(place[key]) for key in ("file", "offset_bytes", "row_bytes", "rows", "stride_bytes")
                )
                for row in range(rows):
                    begin = offset + row * stride
                    assembled[which][begin : begin + size] = content[at : at + size]
                    at += size
        for file, content in zip(manifest.get("assembled", []), assembled, strict=True):
            files[file["name"]] = bytes(content)
        return files

    def state_of_anchor(self, path, record):
        state = {}
        for name, content in self.read_anchor(path, record).items():
            if name.endswith(".safetensors"):
                state |= read_safetensors(content)
        return self.checked(state, record)

    def checked(self, state, record):
        """The state without the names that are aliases, if it is the one of the record."""
        layout = self.read_layout(record)
        for alias, kept in layout.aliases.items():
            if alias in state:
                state.setdefault(kept, state[alias])
                require(state.pop(alias) == state[kept], "A tied tensor has other bits under its alias.")
        require(layout_of(state, layout.aliases) == layout, "A state has another layout than its record says.")
        require(state_digest(state).hex() == record["digest"], "A state has another digest than its record says.")
        return state

    def state_after(self, state, record):
        """The state after the delta of the record."""
        if not record["delta"]["parts"]:
            return state
        after = {}
        layout = self.read_layout(self.records[int(record["version"]) - 1])
        base = state | {alias: state[kept] for alias, kept in layout.aliases.items()}
        for part in self.read_parts(record):
            for name, tensor in decode_delta(part, base).items():
                after[name] = merged(base.get(name), after.get(name), tensor)
        expected = self.read_layout(record)
        return self.checked({name: after[name] for name in after if name in expected.tensors}, record)

    def state(self, version):
        """The state of a version, from the newest anchor that leads to it; {name: (dtype, shape, bytes)}."""
        require(version < len(self.records), f"There is no version {version}.")
        start = int(self.records[version]["chain_start"])
        for first in range(version, start - 1, -1):
            for path in self.anchors_of(first):
                state = self.state_of_anchor(path, self.records[first])
                for record in self.records[first + 1 : version + 1]:
                    state = self.state_after(state, record)
                return state
        raise Damaged(f"No anchor leads to version {version}.")


def merged(before, so_far, tensor):
    """A tensor of several parts: each changes boxes of its own."""
    if so_far is None or before is None or before[:2] != tensor[:2]:
        return tensor
    old, one, other = (np.frombuffer(each[2], np.uint8) for each in (before, so_far, tensor))
    return (*tensor[:2], np.where(other != old, other, one).tobytes())


# --- Command line -------------------------------------------------------------------------------


def check_objects(directory):
    """A line for each vector that does not do as it should, and the number of vectors."""
    wrong, count = [], 0
    expected = {"written": "read", "good": "read", "bad": "damaged", "unsupported": "unsupported"}
    for path in sorted(Path(directory).glob("*/*.json")):
        try:
            PARSERS[path.name.split("_")[0].removesuffix(".json")](path.read_bytes())
            outcome = "read"
        except DeltaError as error:
            outcome = error.word
        if outcome != expected[path.parent.name]:
            wrong.append(f"{path.parent.name}/{path.name}: {outcome}, not {expected[path.parent.name]}")
        count += 1
    return wrong, count


def main(arguments):
    try:
        match arguments:
            case ["versions", run]:
                for record in Run(run).records:
                    print(record["version"], record["step"], record["digest"])
            case ["checkout", run, version, out]:
                Path(out).write_bytes(safetensors_bytes(Run(run).state(int(version))))
            case ["check", directory]:
                wrong, count = check_objects(directory)
                print(*wrong, f"{count - len(wrong)} of {count} objects do as they should", sep="\n")
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
