"""The configuration and tokenizer files that go with every anchor, so that it loads with from_pretrained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weightwire._arrays import named_dtype, spelled_out
from weightwire._lora import Lora, is_peft, save_adapter_config
from weightwire._published import Fp8
from weightwire._state import linear_names, tensors_of, unwrap


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
        kept = [name for name in sorted(linear_names(model, tensors)) if not dtype.quantizes(name, True)]
        config["quantization_config"] = dtype.configuration([name.removesuffix(".weight") for name in kept])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
