"""make_object_vectors.py DIRECTORY: writes spec/vectors/objects. Run by ./dev vectors.

The part of a file's name before the first "_" is the kind of the object. Each bad one is a good one with one defect.
"""

import copy
import json
import shutil
import sys
from pathlib import Path

RUN, OTHER = "00112233445566778899aabbccddeeff", "0123456789abcdef0123456789abcdef"
LARGEST = str((1 << 64) - 1)


def hash_of(digit):
    return digit * 64


def part(digit, size):
    key = f"deltas/{41:020}-{42:020}/{hash_of(digit)}.safetensors"
    return {"key": key, "bytes": size, "hash": hash_of(digit)}


RUN_JSON = {
    "format": "weightwire-run",
    "format_version": 1,
    "run_id": RUN,
    "single_writer": False,
    "read_features": [],
    "write_features": [],
}
RECORD = {
    "format": "weightwire-record",
    "run_id": RUN,
    "version": "42",
    "parent_hash": hash_of("1"),
    "step": "420",
    "time": "2026-11-15T08:00:00.042Z",
    "writer_id": OTHER,
    "layout_hash": hash_of("2"),
    "digest": hash_of("3"),
    "delta": {"parts": [part("4", "10"), part("5", "20")]},
    "changed_elements": "7",
    "total_delta_bytes": "1000",
    "chain_start": "40",
    "anchor": {"version": "41", "id": OTHER, "bytes": "5000", "manifest_hash": hash_of("6")},
    "read_features": [],
}
REBASE = RECORD | {"delta": None, "chain_start": "42", "anchor": RECORD["anchor"] | {"version": "42"}}
FIRST = REBASE | {
    "version": "0",
    "parent_hash": None,
    "total_delta_bytes": "0",
    "chain_start": "0",
    "anchor": RECORD["anchor"] | {"version": "0"},
}
ANCHOR = {
    "format": "weightwire-anchor",
    "run_id": RUN,
    "version": "42",
    "id": OTHER,
    "layout_hash": hash_of("2"),
    "digest": hash_of("3"),
    "total_delta_bytes": "1000",
    "files": [
        {"name": "config.json", "bytes": "12", "hash": hash_of("4")},
        {"name": "sub/model.safetensors", "bytes": "99", "hash": hash_of("5")},
    ],
}


def place(offset, row_bytes, rows, stride):
    numbers = {"file": 0, "offset_bytes": offset, "row_bytes": row_bytes, "rows": rows, "stride_bytes": stride}
    return {key: str(number) for key, number in numbers.items()}


PIECES = ANCHOR | {
    "files": [
        {"name": "config.json", "bytes": "12", "hash": hash_of("4")},
        {
            "name": "pieces/00000",
            "bytes": "50",
            "hash": hash_of("5"),
            "places": [place(0, 20, 1, 20), place(20, 5, 6, 10)],
        },
        {"name": "pieces/00001", "bytes": "30", "hash": hash_of("6"), "places": [place(25, 5, 6, 10)]},
    ],
    "assembled": [{"name": "model.safetensors", "bytes": "80"}],
}
LEASE = {
    "format": "weightwire-lease",
    "run_id": RUN,
    "id": OTHER,
    "name": "rollout-7:mirror",
    "version": "41",
    "needs_deltas_after": "40",
    "needs_anchor": f"anchors/{40:020}/{RUN}",
    "ttl_seconds": 900,
}
MARK = {
    "format": "weightwire-mark",
    "run_id": RUN,
    "id": OTHER,
    "keys": [f"deltas/{41:020}-{42:020}/", f"anchors/{40:020}/{RUN}/", part("4", "10")["key"]],
}

OBJECTS = {"run": RUN_JSON, "record": RECORD, "anchor": ANCHOR, "lease": LEASE, "mark": MARK}
WRITTEN = OBJECTS | {
    "run_of_a_single_writer": RUN_JSON | {"single_writer": True, "write_features": ["x"]},
    "record_first": FIRST,
    "record_rebase": REBASE,
    "record_unchanged": RECORD | {"delta": {"parts": []}},
    "record_without_anchor": RECORD | {"anchor": None},
    "record_needs_pieces": RECORD | {"read_features": ["pieces"]},
    "record_largest_numbers": RECORD | {"step": LARGEST, "changed_elements": LARGEST, "total_delta_bytes": LARGEST},
    "anchor_in_pieces": PIECES,
    "lease_that_needs_nothing": LEASE | {"version": None, "needs_deltas_after": None, "needs_anchor": None},
    "mark_of_nothing": MARK | {"keys": []},
}


def at(value, path):
    """The container that the last step of the path is in, and that step."""
    for step in path[:-1]:
        value = value[step]
    return value, path[-1]


def changed(value, path, new):
    value = copy.deepcopy(value)
    container, step = at(value, path)
    container[step] = new
    return value


def without(value, path):
    value = copy.deepcopy(value)
    container, step = at(value, path)
    del container[step]
    return value


def paths_of_keys(value, path=()):
    """The path of every key, of lists those of the last member."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield (*path, key)
            yield from paths_of_keys(member, (*path, key))
    elif isinstance(value, list) and value:
        yield from paths_of_keys(value[-1], (*path, len(value) - 1))


def with_unknown_keys(value):
    """Unknown keys of every type, in every object."""
    if isinstance(value, list):
        return [with_unknown_keys(member) for member in value]
    if not isinstance(value, dict):
        return value
    unknown = {"a_new_key": {"of": [1.5, None, True, "text", {}]}}
    return unknown | {key: with_unknown_keys(member) for key, member in value.items()}


def text(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def good_vectors():
    for name, value in (*OBJECTS.items(), ("anchor_in_pieces", PIECES)):
        yield f"{name}_with_unknown_keys", text(with_unknown_keys(value))
        yield f"{name}_in_another_order_with_spaces", json.dumps(dict(reversed(value.items())), indent=2) + "\n"
    for name, time in (("second", "00Z"), ("tenth", "00.5Z"), ("nanosecond", "00.123456789Z")):
        yield f"record_time_to_the_{name}", text(RECORD | {"time": "2026-11-15T08:00:" + time})
    info = {"loss": 0.25, "algorithm": "grpo", "samples": 512}
    yield "record_with_info", text(RECORD | {"info": info})
    yield "lease_name_beyond_ascii", text(LEASE | {"name": "caf\u00e9 \u20ac"})
    yield "lease_name_escaped", json.dumps(LEASE | {"name": "caf\u00e9 \U0001f600"}, separators=(",", ":"))
    for seconds in (60, 86400):
        yield f"lease_of_{seconds}_seconds", text(LEASE | {"ttl_seconds": seconds})


def bad_vectors():
    for name, value in (*OBJECTS.items(), ("anchor_in_pieces", PIECES)):
        for path in paths_of_keys(value):
            key = "_".join(str(step) for step in path if isinstance(step, str))
            if path == ("assembled",):
                continue  # without it the places are in no file, which has a name of its own below
            if path[-1] != "places":
                yield f"{name}_without_{key}", text(without(value, path))
            if name == "anchor" or path[:1] != ("files",) or "places" in path:
                yield f"{name}_{key}_is_a_negative_number", text(changed(value, path, -1))
        yield f"{name}_is_a_list", text([value])
        yield f"{name}_is_cut_off", text(value)[:-1]
        yield f"{name}_has_text_after_it", text(value) + "x"
        yield f"{name}_begins_with_a_byte_order_mark", "\ufeff" + text(value)
        yield f"{name}_has_a_key_twice", text(value)[:-1] + f',"run_id":"{value["run_id"]}"}}'
        yield f"{name}_of_another_format", text(value | {"format": "weightwire-delta"})
        yield f"{name}_run_id_in_capitals", text(value | {"run_id": RUN.upper()})
        yield f"{name}_run_id_too_short", text(value | {"run_id": RUN[1:]})
    yield "lease_name_with_an_unpaired_surrogate", text(LEASE | {"name": "NAME"}).replace("NAME", "\\ud800")
    yield from bad_records()
    yield from bad_anchors()
    yield from bad_leases_and_marks()


def bad_records():
    for name, number in (
        ("plain", 7),
        ("empty", ""),
        ("signed", "+7"),
        ("with_a_leading_zero", "07"),
        ("with_a_fraction", "7.0"),
        ("with_a_space", " 7"),
        ("above_64_bits", "18446744073709551616"),
        ("null", None),
    ):
        yield f"record_number_{name}", text(RECORD | {"step": number})
    for name, time in (
        ("without_z", "2026-11-15T08:00:00"),
        ("with_an_offset", "2026-11-15T08:00:00+00:00"),
        ("with_a_space", "2026-11-15 08:00:00Z"),
        ("with_an_empty_fraction", "2026-11-15T08:00:00.Z"),
        ("with_ten_digits_of_a_second", "2026-11-15T08:00:00.0123456789Z"),
        ("with_a_comma", "2026-11-15T08:00:00,5Z"),
    ):
        yield f"record_time_{name}", text(RECORD | {"time": time})
    yield "record_hash_in_capitals", text(RECORD | {"digest": hash_of("A")})
    yield "record_hash_too_short", text(RECORD | {"digest": hash_of("a")[1:]})
    yield (
        "record_version_too_large",
        text(
            REBASE
            | {key: str(1 << 63) for key in ("version", "chain_start")}
            | {"anchor": RECORD["anchor"] | {"version": str(1 << 63)}}
        ),
    )
    yield "record_without_a_parent", text(RECORD | {"parent_hash": None})
    yield "record_version_0_has_a_parent", text(FIRST | {"parent_hash": hash_of("1")})
    yield "record_version_0_has_a_delta", text(FIRST | {"delta": {"parts": []}})
    yield "record_version_0_has_bytes_of_deltas", text(FIRST | {"total_delta_bytes": "1"})
    yield "record_chain_starts_at_a_version_with_a_delta", text(RECORD | {"chain_start": "42"})
    yield "record_chain_starts_later", text(RECORD | {"chain_start": "43"})
    yield "record_chain_of_a_rebase_starts_earlier", text(REBASE | {"chain_start": "41"})
    yield "record_anchor_of_a_later_version", text(changed(RECORD, ("anchor", "version"), "43"))
    yield "record_rebase_with_an_earlier_anchor", text(changed(REBASE, ("anchor", "version"), "41"))
    yield "record_rebase_without_an_anchor", text(REBASE | {"anchor": None})
    yield "record_fewer_bytes_than_its_parts_have", text(RECORD | {"total_delta_bytes": "29"})
    for name, key in (
        ("part_of_another_version", f"deltas/{42:020}-{43:020}/{hash_of('4')}.safetensors"),
        ("part_that_skips_a_version", f"deltas/{40:020}-{42:020}/{hash_of('4')}.safetensors"),
        ("part_under_another_hash", part("7", "10")["key"]),
        ("part_outside_of_the_run", "../../etc/passwd"),
    ):
        yield f"record_{name}", text(changed(RECORD, ("delta", "parts", 0, "key"), key))


def bad_anchors():
    for name, file in (
        ("empty", ""),
        ("absolute", "/x"),
        ("above_the_directory", "../x"),
        ("hidden", ".x"),
        ("hidden_in_a_folder", "a/.b"),
        ("with_a_space", "a b"),
        ("with_an_empty_segment", "a//b"),
        ("of_the_manifest", "anchor.json"),
    ):
        yield f"anchor_file_name_{name}", text(changed(ANCHOR, ("files", 0, "name"), file))
    yield "anchor_file_twice", text(changed(ANCHOR, ("files", 0, "name"), "sub/model.safetensors"))
    yield "anchor_file_that_is_a_folder", text(changed(ANCHOR, ("files", 0, "name"), "sub"))
    yield "anchor_bytes_above_64_bits_together", text(changed(ANCHOR, ("files", 0, "bytes"), LARGEST))
    last = ("files", 2, "places", 0)
    for name, key, number in (
        ("in_no_file", "file", "1"),
        ("behind_the_end", "offset_bytes", "46"),
        ("far_behind_the_end", "offset_bytes", LARGEST),
        ("with_a_row_behind_the_end", "stride_bytes", "16"),
        ("with_rows_that_overlap", "stride_bytes", "4"),
        ("without_rows", "rows", "0"),
        ("with_empty_rows", "row_bytes", "0"),
        ("with_fewer_bytes_than_the_piece", "rows", "5"),
    ):
        yield f"anchor_place_{name}", text(changed(PIECES, (*last, key), number))
    yield "anchor_piece_without_places", text(changed(PIECES, ("files", 2, "places"), []))
    yield "anchor_pieces_of_no_file", text(without(PIECES, ("assembled",)))
    yield "anchor_pieces_leave_a_byte_out", text(changed(PIECES, ("assembled", 0, "bytes"), "81"))
    yield "anchor_pieces_of_a_file_without_weights", text(changed(PIECES, ("assembled", 0, "name"), "x.json"))
    yield "anchor_piece_with_the_name_of_its_file", text(changed(PIECES, ("files", 1, "name"), "model.safetensors"))


def bad_leases_and_marks():
    for seconds in (0, 59, 86401, 600.0, "600", None):
        yield (
            f"lease_of_{json.dumps(seconds)}_seconds".replace('"', "quoted_", 1).replace('"', ""),
            text(LEASE | {"ttl_seconds": seconds}),
        )
    yield "lease_name_too_long", text(LEASE | {"name": "x" * 129})
    for name, character in (("a_newline", "\n"), ("an_escape", "\x1b"), ("a_delete", "\x7f"), ("a_c1_control", "\x9b")):
        yield f"lease_name_with_{name}", text(LEASE | {"name": f"a{character}b"})
    for name, key in (("with_a_slash_at_the_end", LEASE["needs_anchor"] + "/"), ("that_is_none", "x")):
        yield f"lease_needs_an_anchor_{name}", text(LEASE | {"needs_anchor": key})
    for name, key in (
        ("nothing", ""),
        ("the_run", "run.json"),
        ("a_record", f"versions/{0:020}.json"),
        ("a_layout", f"layouts/{hash_of('1')}.json"),
        ("a_lease", f"leases/{OTHER}.json"),
        ("all_deltas", "deltas/"),
        ("all_anchors", "anchors/"),
        ("all_anchors_of_a_version", f"anchors/{40:020}/"),
        ("a_file_of_an_anchor", MARK["keys"][1] + "anchor.json"),
        ("an_anchor_without_a_slash", MARK["keys"][1][:-1]),
        ("a_folder_below_a_delta", MARK["keys"][0] + "sub/"),
        ("what_is_above_a_delta", MARK["keys"][0] + "../x"),
    ):
        yield f"mark_of_{name}", text(MARK | {"keys": [key]})


def unsupported_vectors():
    yield "run_of_format_version_2", text(RUN_JSON | {"format_version": 2})
    yield "run_of_format_version_2_that_looks_different", text({"format": "weightwire-run", "format_version": 2})
    yield "run_with_an_unknown_feature", text(RUN_JSON | {"read_features": ["pieces", "teleport"]})
    yield "record_with_an_unknown_feature", text(RECORD | {"read_features": ["teleport"]})
    unknown = {"format": "weightwire-record", "read_features": ["teleport"]}
    yield "record_with_an_unknown_feature_that_looks_different", text(unknown)


def main(directory):
    folders = {
        "written": [(name, text(value)) for name, value in WRITTEN.items()],
        "good": list(good_vectors()),
        "bad": list(bad_vectors()),
        "unsupported": list(unsupported_vectors()),
    }
    for folder, vectors in folders.items():
        path = Path(directory) / folder
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        names = [name for name, _ in vectors]
        assert len(set(names)) == len(names), "two vectors have one name"
        for name, content in vectors:
            (path / f"{name}.json").write_bytes(content.encode("utf-8"))


if __name__ == "__main__":
    main(sys.argv[1])
