"""The configuration and tokenizer files that go with every anchor, so that it loads with from_pretrained."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from weightwire._arrays import named_dtype, spelled_out
from weightwire._lora import Lora, is_peft, save_adapter_config
from weightwire._published import Fp8
from weightwire._state import roles_of, tensors_of, unwrap
from weightwire.errors import IoError


class Carried:
    """A directory with these files. Every anchor reads them anew: they must outlive whoever tidies up there."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="weightwire-"))
        self._files: dict[Path, bytes] = {}

    def write(self, model: Any, tokenizer: Any, dtype: Any, lora: Lora) -> str | None:
        """Where they are, or None if there are none."""
        try:
            written = write_carried(model, tokenizer, dtype, lora, self._directory)
            self._files = {path: path.read_bytes() for path in self._directory.rglob("*") if path.is_file()}
        except OSError as error:
            raise IoError(
                f"cannot write the model's configuration and tokenizer to {self._directory}: {error}; make room there, "
                "or give a directory that has them as carry="
            ) from error
        return None if written is None else os.fspath(written)

    def restore(self) -> None:
        """What somebody has removed."""
        for path, content in self._files.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def write_carried(model: Any, tokenizer: Any, dtype: Any, lora: Lora, directory: Path) -> Path | None:
    """As save_pretrained writes them; None if there are none."""
    model = unwrap(model)
    if is_peft(model):
        if lora == "adapter":
            save_adapter_config(model, directory)
        model = model.get_base_model()
    parts = [tokenizer]
    if not (directory / "adapter_config.json").exists():
        parts += [getattr(model, "config", None), getattr(model, "generation_config", None)]
    for part in parts:
        save = getattr(part, "save_pretrained", None)
        if save is not None:
            save(directory)
    if (directory / "config.json").exists():
        _say_published(model, dtype, directory / "config.json")
    return directory if any(directory.iterdir()) else None


def _say_published(model: Any, dtype: Any, path: Path) -> None:
    """A trainer's configuration says what it was loaded from, if anything; engines go by the class and the type of the
    weights that are published. The model's own stays as it is."""
    config = json.loads(path.read_text())
    # As save_pretrained has it; fully_shard puts its mark before the name of the class.
    config["architectures"] = [type(model).__name__.removeprefix("FSDP")]
    published = dtype.rest if isinstance(dtype, Fp8) else dtype
    if published is None:
        published = getattr(model, "dtype", None)
    if published is not None:
        # transformers before 5 calls it torch_dtype, and reads nothing else.
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = spelled_out(named_dtype(published))
    if isinstance(dtype, Fp8):
        tensors, _ = tensors_of(model)
        roles = roles_of(model, tensors, dtype)
        kept = sorted(name for name in roles.linear | roles.stacked if not dtype.quantizes(name, name in roles.linear))
        config["quantization_config"] = dtype.configuration([_module_of(name) for name in kept])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _module_of(name: str) -> str:
    """Of experts in one tensor, the module that holds them all."""
    return name.removesuffix(".weight") if name.endswith(".weight") else name.rpartition(".")[0]
