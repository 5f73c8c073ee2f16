"""The arguments of a publisher: checked, and as the core takes them. `Publisher` documents them and their defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypedDict

from weightwire._arguments import seconds, whole_number
from weightwire._background_read import check_optimizer
from weightwire._dtensor import is_distributed
from weightwire._extra_files import ExtraFiles
from weightwire._fp8 import check_published_dtype
from weightwire._lora import Lora, is_peft
from weightwire._model_state import check_is_model, unwrap
from weightwire.errors import InvalidArgumentError


class CoreOptions(TypedDict):
    """The options that the binding reads."""

    anchor_every: int
    anchor_percent: int
    spool_versions: int
    skip_when_full: bool
    state: str | None
    base_in_file: bool
    extra_files: str | None
    include_code: bool
    adapter: bool
    single_writer: bool
    drop_lost_versions: bool
    rebuild: bool
    threads: int
    bytes_per_second: int
    rank_timeout: float


class RankOptions(CoreOptions):
    """With several ranks."""

    rank: int
    ranks: int


@dataclass(frozen=True)
class PublisherOptions:
    """The arguments as the user gave them, unchecked."""

    model: Any
    anchor_every: int
    anchor_percent: int
    dtype: Any
    lora: Lora
    tokenizer: Any
    extra_files: str | os.PathLike[str] | None
    include_code: bool
    state: str | os.PathLike[str] | None
    base: str
    when_full: str
    spool_versions: int
    single_writer: bool
    drop_lost_versions: bool
    rebuild: bool
    threads: int
    bytes_per_second: int
    distributed: bool | None
    rank_timeout: float
    optimizer: Any

    @property
    def has_ranks(self) -> bool:
        """Whether all ranks publish together."""
        if self.distributed and not is_distributed():
            raise InvalidArgumentError("distributed=True takes a process group of torch.distributed of several ranks")
        return is_distributed() if self.distributed is None else self.distributed

    def check(self) -> None:
        """Raises if the arguments contradict each other, or are no such values."""
        if self.model is not None:
            check_is_model(self.model)
        if self.base not in ("memory", "file") or self.when_full not in ("wait", "skip"):
            raise InvalidArgumentError('base is "memory" or "file", and when_full is "wait" or "skip"')
        if self.base == "file" and self.state is None:
            raise InvalidArgumentError('base="file" needs a directory to lie in: give state=')
        if self.lora not in ("adapter", "merged"):
            raise InvalidArgumentError('lora is "adapter" or "merged"')
        if self.has_ranks and (self.state is not None or self.when_full == "skip"):
            raise InvalidArgumentError('with several ranks there is no state= directory, and no when_full="skip"')
        check_published_dtype(self.dtype)
        if self.optimizer is not None:
            check_optimizer(self.model, self.optimizer)

    def for_core(self, written_files: ExtraFiles | None) -> CoreOptions:
        """Checks everything. `written_files`: where to write the model's own files, unless the user gave a directory of
        them; None: this rank writes none."""
        self.check()
        options = CoreOptions(
            anchor_every=whole_number("anchor_every", self.anchor_every),
            anchor_percent=whole_number("anchor_percent", self.anchor_percent),
            spool_versions=whole_number("spool_versions", self.spool_versions, least=1),
            skip_when_full=self.when_full == "skip",
            state=None if self.state is None else os.fspath(self.state),
            base_in_file=self.base == "file",
            extra_files=None if self.extra_files is None else os.fspath(self.extra_files),
            include_code=bool(self.include_code),
            adapter=self.lora == "adapter" and is_peft(unwrap(self.model)),
            single_writer=bool(self.single_writer),
            drop_lost_versions=bool(self.drop_lost_versions),
            rebuild=bool(self.rebuild),
            threads=whole_number("threads", self.threads),
            bytes_per_second=whole_number("bytes_per_second", self.bytes_per_second),
            rank_timeout=seconds("rank_timeout", self.rank_timeout),
        )
        if self.extra_files is None and written_files is not None:
            options["extra_files"] = written_files.write(self.model, self.tokenizer, self.dtype, self.lora)
        return options
