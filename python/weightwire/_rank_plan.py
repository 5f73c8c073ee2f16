"""Decides which rank sends which boxes. Each rank announces the boxes that it holds, and `make_plan` assigns each box
to one rank, with the same result on all of them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from weightwire._conversion import BLOCK
from weightwire._dtensor import LocalShard, local_shard
from weightwire._model_state import core_tensors, roles_of
from weightwire.errors import InvalidArgumentError


class PublishedBox(NamedTuple):
    """A box of a tensor as it is published."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: tuple[int, ...]
    extent: tuple[int, ...]


class Failure(NamedTuple):
    """An error on a rank, for the other ranks."""

    kind: str
    message: str


class Announcement(NamedTuple):
    """The boxes that a rank could send. `boxes` has, by the name of the model's tensor, the boxes that are published
    for it: one, or two with fp8 scales."""

    host: str
    boxes: dict[str, list[PublishedBox]]
    aliases: dict[str, str]
    error: Failure | None = None


class Plan(NamedTuple):
    """The layout and the aliases are the same on all ranks; `sources` and `boxes` are this rank's."""

    layout: list[tuple[str, str, tuple[int, ...]]]
    aliases: dict[str, str]
    sources: set[str]
    """The model's tensors of which this rank sends its box."""
    boxes: list[tuple[str, tuple[int, ...], tuple[int, ...]]]


def boxes_of(model: Any, tensors: dict[str, Any], dtype: Any) -> dict[str, list[PublishedBox]]:
    """The boxes that this rank could send of a model's tensors."""
    roles = roles_of(model, tensors, dtype)
    boxes: dict[str, list[PublishedBox]] = {}
    for name, tensor in tensors.items():
        shard = local_shard(name, tensor)
        if shard is None:
            continue
        published = core_tensors({name: shard.data}, dtype, roles)
        boxes[name] = [PublishedBox(published[0][0], published[0][1], shard.shape, shard.start, shard.extent)]
        boxes[name] += [_scale_box(scales, shard, name) for scales in published[1:]]
    return boxes


def _scale_box(scales: tuple[Any, ...], shard: LocalShard, name: str) -> PublishedBox:
    """The box of an fp8 shard's scales. Raises if the shard cuts a block."""
    for start, extent, size in zip(shard.start, shard.extent, shard.shape, strict=True):
        end = start + extent
        if start % BLOCK != 0 or (end % BLOCK != 0 and end != size):
            raise InvalidArgumentError(
                f"'{name}' cannot be published as fp8: a rank holds {start} to {end} of {size} in one dimension, which "
                f"cuts a block of {BLOCK}; shard it at multiples of {BLOCK}, or keep it as it is (Fp8(ignore=...))"
            )
    return PublishedBox(
        scales[0],
        scales[1],
        tuple(-(-size // BLOCK) for size in shard.shape),
        tuple(start // BLOCK for start in shard.start),
        tuple(scales[2]),
    )


def _bytes(box: PublishedBox) -> int:
    bits = re.search(r"\d+", box.dtype)
    size = int(bits.group()) if bits else 8
    for extent in box.extent:
        size *= extent
    return size // 8


def make_plan(announcements: list[Announcement], rank: int) -> Plan:
    """Assigns each box to one of the ranks that hold it, so that all ranks have about as many bytes to send."""
    aliases: dict[str, str] = {}
    for announcement in announcements:
        aliases.update(announcement.aliases)
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    holders: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    sizes: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    for holder, announcement in enumerate(announcements):
        for source, boxes in announcement.boxes.items():
            # A rank that holds nothing of a tied tensor cannot know of the tie.
            if source in aliases:
                continue
            for box in boxes:
                known = layout.setdefault(box.name, (box.dtype, box.shape))
                if known != (box.dtype, box.shape):
                    raise InvalidArgumentError(
                        f"the ranks disagree about '{box.name}': {box.dtype} {box.shape} on rank {holder}, "
                        f"{known[0]} {known[1]} on another"
                    )
            key = (source, boxes[0].start, boxes[0].extent)
            holders.setdefault(key, []).append(holder)
            sizes[key] = sum(_bytes(box) for box in boxes)
    loads = [0] * len(announcements)
    senders = {}
    for key in sorted(holders, key=lambda key: (len(holders[key]) > 1, -sizes[key], key)):
        sender = min(holders[key], key=lambda candidate: (loads[candidate], candidate))
        loads[sender] += sizes[key]
        senders[key] = sender
    mine = {key[0] for key, sender in senders.items() if sender == rank}
    boxes_to_send = [
        (box.name, box.start, box.extent)
        for source in sorted(mine)
        for box in announcements[rank].boxes[source]
        if 0 not in box.extent
    ]
    tensors = [(name, dtype, shape) for name, (dtype, shape) in sorted(layout.items())]
    return Plan(tensors, aliases, mine, boxes_to_send)
