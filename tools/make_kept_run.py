"""make_kept_run.py DIRECTORY: makes a small run as this version writes it. Run by ./dev kept-run.

Later versions must read what it makes (tests/data/run-1): the run, the mirror of a follower that was killed, and the
state directory of a publisher that was killed before it sent its last version. Made once; do not make it again to let a
test pass.

    DIRECTORY/run            eight versions: two changes of the layout, three anchors, a lease, a mark of a killed gc
    DIRECTORY/mirror         holds version 5
    DIRECTORY/state          of the publisher: version 8 is not sent yet
    DIRECTORY/versions.json  digest and step of each version, version 8 included
"""

import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
COMMAND = os.environ.get("WEIGHTWIRE", str(REPOSITORY / "build/weightwire"))
CRASHING = Path(os.environ.get("WW_TEST_TOOLS", REPOSITORY / "build/tests")) / "weightwire_crashing"
UNSENT = 8


def noise(label, count):
    """The same bytes everywhere, for this label."""
    return b"".join(hashlib.sha256(f"{label} {block}".encode()).digest() for block in range(-(-count // 32)))[:count]


def weights(label, shape):
    """bf16 weights near 0.02."""
    units = bytearray(noise(label, 2 * shape[0] * shape[1]))
    for at in range(1, len(units), 2):
        units[at] = (units[at] & 0x80) | 0x3C
    return ("BF16", shape, bytes(units))


def trained(tensors, step):
    """One element in twenty moves to the next number."""
    after = {}
    for name, (dtype, shape, data) in tensors.items():
        moved, width = bytearray(data), {"BF16": 2, "F32": 4, "F8_E4M3": 1}[dtype]
        for element, random in enumerate(noise(f"{step} {name}", len(data) // width)):
            if random < 13:
                moved[element * width] ^= 1
        after[name] = (dtype, shape, bytes(moved))
    return after


def states():
    """The states of versions 0 to UNSENT."""
    tensors = {
        "embed.weight": weights("embed", (48, 32)),
        "layer.0.weight": weights("layer 0", (32, 32)),
        "layer.0.quantized": ("F8_E4M3", (32, 16), bytes(byte & 0x3F for byte in noise("quantized", 512))),
        "norm.weight": ("F32", (32,), b"\x00\x00\x80\x3f" * 32),
    }
    for version in range(UNSENT + 1):
        if version:
            tensors = trained(tensors, version)
        if version == 4:
            tensors["layer.1.weight"] = weights("layer 1", (32, 32))
        if version == 7:
            del tensors["layer.0.quantized"]
        yield tensors


def main(directory):
    sys.path.insert(0, str(REPOSITORY / "reference"))
    reference = importlib.import_module("weightwire_reference")
    out = Path(directory).resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    run, mirror, digests = out / "run", out / "mirror", []
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "XDG_STATE_HOME": f"{scratch}/state-home"}

        def weightwire(*arguments, program=COMMAND, **variables):
            return subprocess.run(
                [program, *map(str, arguments)], env={**environment, **variables}, capture_output=True, text=True
            )

        def killed_once(is_time, *arguments):
            process = subprocess.Popen([COMMAND, *map(str, arguments)], env=environment, stdout=subprocess.DEVNULL)
            while not is_time():
                assert process.poll() is None, "it ended too early"
                time.sleep(0.01)
            time.sleep(0.5)
            process.send_signal(signal.SIGKILL)
            process.wait()

        for version, state in enumerate(states()):
            checkpoint = Path(scratch) / f"{version}"
            checkpoint.mkdir()
            metadata = {"format": "pt", "lm_head.weight": "embed.weight"}
            (checkpoint / "model.safetensors").write_bytes(reference.safetensors_bytes(state, metadata))
            (checkpoint / "config.json").write_text('{"model_type": "test"}')
            digests.append(reference.state_digest(state).hex())
            publish = ("publish", run, checkpoint, "--step", 10 * version, "--anchor-every", 3)
            if version == UNSENT:
                break
            ran = weightwire(*publish)
            assert ran.returncode == 0, ran.stderr
            if version == 5:
                killed_once(
                    lambda: any(b'"version":"5"' in lease.read_bytes() for lease in run.glob("leases/*")),
                    "follow",
                    run,
                    mirror,
                    "--name",
                    "rollout-1",
                )
        # Kill the publisher before each of its requests in turn, until the last version is in its spool but not sent.
        for request in range(1, 100):
            copy = Path(scratch) / "copy"
            shutil.copytree(Path(scratch) / "state-home", copy / "state-home")
            shutil.copytree(run, copy / "run")
            dies = {"DIE_BEFORE_REQUEST": f"{request}", "XDG_STATE_HOME": str(copy / "state-home")}
            died = weightwire("publish", copy / "run", *publish[2:], program=CRASHING, **dies)
            (state,) = (copy / "state-home" / "weightwire").iterdir()
            if list(state.glob(f"**/{UNSENT:020}/record.json")):
                assert died.returncode == -signal.SIGKILL, died.stderr
                shutil.copytree(state, out / "state")
                break
            shutil.rmtree(copy)
        gc = ("gc", run, "--min-age", "0", "--grace", "1h", "--keep-anchors", 2)
        killed_once(lambda: len(list(run.glob("gc/*"))), *gc)
    listed = [{"version": v, "step": 10 * v, "digest": digest} for v, digest in enumerate(digests)]
    (out / "versions.json").write_text(json.dumps(listed, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
