"""The check that rows are images."""

from __future__ import annotations


def channels_of(shape: tuple[int, ...], network: str, *, smallest: int) -> int:
    """Channels of image rows (channels, height, width); anything else is refused."""
    if len(shape) != 3:
        raise ValueError(
            f"{network} needs images (channels, height, width), one row here has shape {tuple(shape)}: use a network "
            "for tables such as models.mlp:MLP, or reshape the rows"
        )
    if min(shape[1:]) < smallest:
        raise ValueError(
            f"{network} needs images of at least {smallest} x {smallest} pixels, these are {shape[1]} x {shape[2]}"
        )
    return shape[0]
