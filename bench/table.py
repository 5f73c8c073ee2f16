"""Prints the figures of `weightwire-bench codec --json` runs side by side, as Markdown: table.py PEER.json RUN.json...

PEER.json is what peer_way.py printed. The first run is the one that counts: one thread, the machine's best instruction
set. Files that are not there are left out.
"""

import json
import sys
from pathlib import Path


def milliseconds(key: str):
    return lambda run, _: f"{run[key] * 1e3:.1f} ms"


def times(key: str):
    return lambda run, _: f"{run[key]:.2f}"


def against_first(key: str):
    return lambda run, first: "" if run["threads"] == first["threads"] else f"{first[key] / run[key]:.2f}"


def mebibytes(key: str):
    return lambda run, _: f"{run[key] / 2**20:.1f} MiB"


# What, must, aim, and how a run's figure is worked out.
ROWS = [
    ("`read2_s`: old and new read once, the floor", "", "", milliseconds("read2_s")),
    ("`encode_s`", "", "", milliseconds("encode_s")),
    ("— times the floor", "≤ 2.5", "≤ 1.5", times("encode_over_read2")),
    ("— times as fast as XOR + zstd-1", "≥ 4", "", times("encode_vs_xor")),
    ("`read1_s`: old read once, the floor", "", "", milliseconds("read1_s")),
    ("`apply_s`", "", "", milliseconds("apply_s")),
    ("— times the floor", "≤ 5", "≤ 2.5", times("apply_over_read1")),
    ("— times as fast as XOR + zstd-1", "≥ 4", "", times("apply_vs_xor")),
    ("`write_s`: of applying, the writing", "", "", milliseconds("write_s")),
    ("`apply_gaps_s`", "", "", milliseconds("apply_gaps_s")),
    ("— times the floor", "≤ 2.5", "≤ 1.2", times("apply_gaps_over_read1")),
    ("`apply_cold_s`", "", "", milliseconds("apply_cold_s")),
    ("— times the floor", "", "", times("apply_cold_over_read1")),
    ("`digest_s`", "", "", milliseconds("digest_s")),
    ("— times the floor", "≤ 2.5", "≤ 1.3", times("digest_over_read1")),
    ("`xor_zstd_encode_s`", "", "", milliseconds("xor_zstd_encode_s")),
    ("`xor_zstd_apply_s`", "", "", milliseconds("xor_zstd_apply_s")),
    ("encode, times as fast as one thread", "≥ 1.6", "", against_first("encode_s")),
    ("apply, times as fast as one thread", "≥ 1.6", "", against_first("apply_s")),
    ("reading both, times as fast as one thread", "", "", against_first("read2_s")),
    ("heap to encode, with the file", "", "", mebibytes("encode_peak_extra_bytes")),
    ("heap to apply, with the staged change", "", "", mebibytes("apply_peak_extra_bytes")),
]


def main() -> None:
    peer = json.loads(Path(sys.argv[1]).read_text())
    runs = [json.loads(Path(name).read_text()) for name in sys.argv[2:] if Path(name).exists()]
    first = runs[0]
    print(f"{first['model_bytes'] / 2**20:.0f} MiB of bf16, {first['changed']:,} elements changed, best of", end=" ")
    print(f"{first['repeat']}; floors read with {first['floor_isa']}. Bytes per changed element:", end=" ")
    print(f"{first['bytes_per_changed']:.3f}, in gaps mode {first['gaps_bytes_per_changed']:.3f},", end=" ")
    print(f"XOR + zstd-1 {first['xor_zstd_bytes_per_changed']:.3f}.\n")
    titles = [f"{run['isa']}, {run['threads']} thread{'s' if run['threads'] > 1 else ''}" for run in runs]
    print("| " + " | ".join(["what", "must", "aim", *titles]) + " |")
    print("|---" * (3 + len(runs)) + "|")
    for what, must, aim, figure in ROWS:
        print("| " + " | ".join([what, must, aim, *(figure(run, first) for run in runs)]) + " |")
    print("\nslime's way, with its libraries in Python, one thread:", end=" ")
    print(f"encode {peer['encode_s'] * 1e3:.0f} ms, {peer['encode_s'] / first['encode_s']:.1f} times as long;", end=" ")
    print(f"apply {peer['apply_s'] * 1e3:.0f} ms, {peer['apply_s'] / first['apply_s']:.1f} times as long.")


if __name__ == "__main__":
    main()
