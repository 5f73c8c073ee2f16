"""The configuration and tokenizer files of every anchor, which make it load with from_pretrained."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from weightwire._dtypes import long_name, parse_dtype
from weightwire._fp8 import Fp8
from weightwire._lora import Lora, is_peft, save_adapter_config
from weightwire._model_state import roles_of, tensors_of, unwrap
from weightwire.errors import LocalIOError


class ExtraFiles:
    """A temporary directory with these files. Each anchor reads them again, so they are restored if something deletes
    them."""

    def __init__(self) -> None:
        self._directory: Path | None = None  # until something is written
        self._files: dict[Path, bytes] = {}

    def write(self, model: Any, tokenizer: Any, dtype: Any, lora: Lora) -> str | None:
        """Writes the files that belong to a model. Returns their directory, or None if there are none."""
        directory = self._directory = Path(tempfile.mkdtemp(prefix="weightwire-"))
        try:
            written = write_extra_files(model, tokenizer, dtype, lora, directory)
            self._files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        except OSError as error:
            raise LocalIOError(
                f"cannot write the model's configuration and tokenizer to {directory}: {error}; make room there, or "
                "give a directory that has them as extra_files="
            ) from error
        return None if written is None else os.fspath(written)

    def restore(self) -> None:
        """Writes the files again that were deleted."""
        for path, content in self._files.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def remove(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def write_extra_files(model: Any, tokenizer: Any, dtype: Any, lora: Lora, directory: Path) -> Path | None:
    """Writes them as save_pretrained does. Returns None if there are none."""
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
        _describe_published(model, dtype, directory / "config.json")
    return directory if any(directory.iterdir()) else None


def _describe_published(model: Any, dtype: Any, path: Path) -> None:
    """Makes the written config.json describe the published weights, because engines go by its class and type. The
    model's own configuration describes what the model was loaded from, and does not change."""
    config = json.loads(path.read_text())
    # The name that save_pretrained writes. fully_shard adds a prefix to it.
    config["architectures"] = [type(model).__name__.removeprefix("FSDP")]
    published = dtype.dtype if isinstance(dtype, Fp8) else dtype
    if published is None:
        published = getattr(model, "dtype", None)
    if published is not None:
        # transformers before 5 calls it torch_dtype, and reads nothing else.
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = long_name(parse_dtype(published))
    if isinstance(dtype, Fp8):
        tensors, _ = tensors_of(model)
        roles = roles_of(model, tensors, dtype)
        kept = sorted(name for name in roles.linear | roles.stacked if not dtype.quantizes(name, name in roles.linear))
        config["quantization_config"] = dtype.configuration([_module_of(name) for name in kept])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _module_of(name: str) -> str:
    """The module of a weight. For experts in one tensor, the module that has them all."""
    return name.removesuffix(".weight") if name.endswith(".weight") else name.rpartition(".")[0]
