"""A small convolutional network."""

from __future__ import annotations

from typing import Literal, get_args

from pyro.nn import PyroModule
from torch import Tensor, nn

from .images import channels_of

Norm = Literal["none", "group"]


class ConvNet(PyroModule):
    """Two 5 x 5 convolutions with ReLU and 2 x 2 max pooling, a layer of `hidden` units with ReLU, and a linear head.

    The convolutions have `channels` and 2 `channels` channels and keep the image's size, so that any image of at least
    4 x 4 pixels fits. `norm = "group"` normalises before every ReLU: `groups` groups of channels of a convolution, all
    hidden units together. `dropout` is the probability that a hidden unit is dropped in training.

    Reference: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, 2017, the MNIST network (channels 32, hidden 512); Wu,
    He, "Group Normalization", 2018; Ba, Kiros, Hinton, "Layer Normalization", 2016.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        channels: int = 32,
        hidden: int = 512,
        dropout: float = 0.0,
        norm: Norm = "none",
        groups: int = 4,
    ):
        super().__init__()
        inputs = channels_of(shape, "ConvNet", smallest=4)
        if channels < 1 or hidden < 1:
            raise ValueError(f"ConvNet: channels and hidden must be at least 1, got {channels} and {hidden}")
        if norm not in get_args(Norm):
            raise ValueError(f"ConvNet: norm must be one of {', '.join(get_args(Norm))}, got {norm!r}")
        if groups < 1 or (norm == "group" and channels % groups):
            raise ValueError(f"ConvNet: channels must be a multiple of groups, got {channels} and {groups}")
        layers: list[nn.Module] = []
        for before, after in ((inputs, channels), (channels, 2 * channels)):
            layers.append(PyroModule[nn.Conv2d](before, after, 5, padding=2))
            if norm == "group":
                layers.append(PyroModule[nn.GroupNorm](groups, after))
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        flat = 2 * channels * (shape[1] // 4) * (shape[2] // 4)
        layers += [nn.Flatten(), PyroModule[nn.Linear](flat, hidden)]
        if norm == "group":
            layers.append(PyroModule[nn.LayerNorm](hidden))
        layers.append(nn.ReLU())
        if dropout:
            layers.append(nn.Dropout(dropout))
        self.body = PyroModule[nn.Sequential](*layers)
        self.head = PyroModule[nn.Linear](hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # (B, outputs)
