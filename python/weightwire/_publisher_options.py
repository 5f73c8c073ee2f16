"""The arguments of a publisher: checked, and as the core takes them. `Publisher` documents them and their defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from weightwire._arguments import seconds, whole_number
from weightwire._background_read import check_optimizer
from weightwire._dtensor import is_distributed
from weightwire._extra_files import ExtraFiles
from weightwire._fp8 import check_published_dtype
from weightwire._lora import Lora, is_peft
from weightwire._model_state import check_is_model, unwrap
from weightwire.errors import InvalidArgumentError


class TransferOptions(TypedDict, total=False):
    """The keyword arguments of `Publisher` that `WeightTransfer` hands on."""

    tokenizer: Any
    extra_files: str | os.PathLike[str] | None
    include_code: bool
    optimizer: Any
    state_dir: str | os.PathLike[str] | None
    base: Literal["memory", "disk"]
    anchor_every: int | None
    anchor_percent: int | None
    max_pending_versions: int
    when_full: Literal["wait", "skip"]
    single_writer: bool
    discard_conflicting: bool
    allow_new_model: bool
    rebuild: bool
    distributed: bool | None
    rank_timeout: float
    exit_timeout: float
    threads: int | None
    max_bytes_per_second: int | None


class PublisherOptions(TransferOptions, total=False):
    """The keyword arguments of `Publisher`, for functions that hand them on: `**options: Unpack[PublisherOptions]`."""

    dtype: Any
    lora: Lora


class CoreOptions(TypedDict):
    """The options that the binding reads. 0 means no limit, no rule, or one thread for each core."""

    anchor_every: int
    anchor_percent: int
    max_pending_versions: int
    skip_when_full: bool
    state_dir: str | None
    base_on_disk: bool
    extra_files: str | None
    include_code: bool
    adapter: bool
    single_writer: bool
    discard_conflicting: bool
    allow_new_model: bool
    rebuild: bool
    threads: int
    max_bytes_per_second: int
    rank_timeout: float


class RankOptions(CoreOptions):
    """With several ranks."""

    rank: int
    ranks: int


@dataclass(frozen=True, kw_only=True)
class PublisherArguments:
    """The arguments as the user gave them, unchecked."""

    model: Any
    dtype: Any
    lora: Lora
    tokenizer: Any
    extra_files: str | os.PathLike[str] | None
    include_code: bool
    optimizer: Any
    state_dir: str | os.PathLike[str] | None
    base: str
    anchor_every: int | None
    anchor_percent: int | None
    max_pending_versions: int
    when_full: str
    single_writer: bool
    discard_conflicting: bool
    allow_new_model: bool
    rebuild: bool
    distributed: bool | None
    rank_timeout: float
    exit_timeout: float
    threads: int | None
    max_bytes_per_second: int | None

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
        if self.base not in ("memory", "disk"):
            raise InvalidArgumentError(f'base is "memory" or "disk", not {self.base!r}')
        if self.when_full not in ("wait", "skip"):
            raise InvalidArgumentError(f'when_full is "wait" or "skip", not {self.when_full!r}')
        if self.base == "disk" and self.state_dir is None:
            raise InvalidArgumentError('base="disk" needs a directory for the base copy: give state_dir=')
        if self.lora not in ("adapter", "merged"):
            raise InvalidArgumentError(f'lora is "adapter" or "merged", not {self.lora!r}')
        if self.has_ranks and self.state_dir is not None:
            raise InvalidArgumentError(
                "several ranks cannot keep a state_dir=: leave it out, or give distributed=False"
            )
        if self.has_ranks and self.when_full == "skip":
            raise InvalidArgumentError('several ranks cannot skip versions: leave out when_full="skip"')
        check_published_dtype(self.dtype)
        if self.optimizer is not None:
            check_optimizer(self.model, self.optimizer)
        seconds("exit_timeout", self.exit_timeout, least=0)

    def for_core(self, written_files: ExtraFiles | None) -> CoreOptions:
        """Checks everything. `written_files`: where to write the model's own files, unless the user gave a directory of
        them; None: this rank writes none."""
        self.check()
        options = CoreOptions(
            anchor_every=_or_zero("anchor_every", self.anchor_every, "never"),
            anchor_percent=_or_zero("anchor_percent", self.anchor_percent, "never"),
            max_pending_versions=whole_number("max_pending_versions", self.max_pending_versions, least=1),
            skip_when_full=self.when_full == "skip",
            state_dir=None if self.state_dir is None else os.fspath(self.state_dir),
            base_on_disk=self.base == "disk",
            extra_files=None if self.extra_files is None else os.fspath(self.extra_files),
            include_code=bool(self.include_code),
            adapter=self.lora == "adapter" and is_peft(unwrap(self.model)),
            single_writer=bool(self.single_writer),
            discard_conflicting=bool(self.discard_conflicting),
            allow_new_model=bool(self.allow_new_model),
            rebuild=bool(self.rebuild),
            threads=_or_zero("threads", self.threads, "one for each core"),
            max_bytes_per_second=_or_zero("max_bytes_per_second", self.max_bytes_per_second, "no limit"),
            rank_timeout=seconds("rank_timeout", self.rank_timeout),
        )
        if self.extra_files is None and written_files is not None:
            options["extra_files"] = written_files.write(self.model, self.tokenizer, self.dtype, self.lora)
        return options


def _or_zero(what: str, value: Any, none_means: str) -> int:
    """A whole number above 0; 0, as the core says it, for None."""
    return 0 if value is None else whole_number(what, value, least=1, none_means=none_means)
