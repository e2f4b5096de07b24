"""A small convolutional network."""

from __future__ import annotations

from pyro.nn import PyroModule
from torch import Tensor, nn

from .images import channels_of


class ConvNet(PyroModule):
    """Two 5 x 5 convolutions with ReLU and 2 x 2 max pooling, a layer of `hidden` units with ReLU, and a linear head.

    The convolutions have `channels` and 2 `channels` channels and keep the image's size, so that any image of at least
    4 x 4 pixels fits. `dropout` is the probability that a hidden unit is dropped in training.

    Reference: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, 2017, the MNIST network (channels 32, hidden 512).
    """

    def __init__(
        self, shape: tuple[int, ...], outputs: int, *, channels: int = 32, hidden: int = 512, dropout: float = 0.0
    ):
        super().__init__()
        inputs = channels_of(shape, "ConvNet", smallest=4)
        if channels < 1 or hidden < 1:
            raise ValueError(f"ConvNet: channels and hidden must be at least 1, got {channels} and {hidden}")
        layers: list[nn.Module] = []
        for before, after in ((inputs, channels), (channels, 2 * channels)):
            layers += [PyroModule[nn.Conv2d](before, after, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        flat = 2 * channels * (shape[1] // 4) * (shape[2] // 4)
        layers += [nn.Flatten(), PyroModule[nn.Linear](flat, hidden), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        self.body = PyroModule[nn.Sequential](*layers)
        self.head = PyroModule[nn.Linear](hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # (B, outputs)
