"""Residual networks for small images."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from .images import channels_of

Norm = Literal["group", "batch", "none"]
Shortcut = Literal["A", "B"]


def _conv(inputs: int, outputs: int, kernel: int, stride: int, norm: Norm) -> nn.Module:
    layer = PyroModule[nn.Conv2d](inputs, outputs, kernel, stride, kernel // 2, bias=norm == "none")
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return layer


def _norm(channels: int, norm: Norm, groups: int) -> nn.Module:
    if norm == "group":
        return PyroModule[nn.GroupNorm](groups, channels)
    return PyroModule[nn.BatchNorm2d](channels) if norm == "batch" else nn.Identity()


class _OptionA(PyroModule):
    """Every `stride`-th pixel, new channels filled with zeros: no parameters."""

    def __init__(self, new: int, stride: int):
        super().__init__()
        self.new, self.stride = new, stride

    def forward(self, x: Tensor) -> Tensor:
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new))


class Block(PyroModule):
    """relu(shortcut(x) + F(x)), F = two 3 x 3 convolutions, each with its norm."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, norm: Norm, groups: int, shortcut: Shortcut):
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride, norm)
        self.norm1 = _norm(outputs, norm, groups)
        self.conv2 = _conv(outputs, outputs, 3, 1, norm)
        self.norm2 = _norm(outputs, norm, groups)
        if norm == "none":  # F starts at 0: without norms the scale of x would double in every block
            nn.init.zeros_(self.conv2.weight)
            nn.init.zeros_(self.conv2.bias)
        if stride == 1 and inputs == outputs:
            self.shortcut: nn.Module = nn.Identity()
        elif shortcut == "A":
            self.shortcut = _OptionA(outputs - inputs, stride)
        else:
            project = _conv(inputs, outputs, 1, stride, norm)
            self.shortcut = PyroModule[nn.Sequential](project, _norm(outputs, norm, groups))

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.norm1(self.conv1(x)))
        return relu(self.shortcut(x) + self.norm2(self.conv2(y)))


class ResNet(PyroModule):
    """A 3 x 3 convolution, three stages of (depth - 2) / 6 blocks, global average pooling and a linear head.

    The stages have `width`, 2 `width` and 4 `width` channels; the second and third halve the image. `norm` is "group"
    (`groups` groups, the default: no statistics over a client's batch), "batch" or "none" (residual branches start at
    0). `shortcut` where a stage begins: "A" subsamples and fills new channels with zeros, without parameters, as in the
    paper's CIFAR networks; "B" is a 1 x 1 convolution. `dropout` drops pooled features in training.

    Reference: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2016, section 4.2; Wu, He, "Group
    Normalization", 2018.
    """

    depth: ClassVar[int]

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        width: int = 16,
        norm: Norm = "group",
        groups: int = 8,
        shortcut: Shortcut = "A",
        dropout: float = 0.0,
    ):
        super().__init__()
        name = type(self).__name__
        for option, value, known in (("norm", norm, get_args(Norm)), ("shortcut", shortcut, get_args(Shortcut))):
            if value not in known:
                raise ValueError(f"{name}: {option} must be one of {', '.join(known)}, got {value!r}")
        if norm == "group" and width % groups:
            raise ValueError(f"{name}: width must be a multiple of groups, got width {width} and groups {groups}")
        channels = channels_of(shape, name, smallest=4)
        layers = [_conv(channels, width, 3, 1, norm), _norm(width, norm, groups), nn.ReLU()]
        inputs = width
        for stage in range(3):
            for block in range((self.depth - 2) // 6):
                after, stride = width * 2**stage, 2 if stage > 0 and block == 0 else 1
                layers.append(Block(inputs, after, stride, norm=norm, groups=groups, shortcut=shortcut))
                inputs = after
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        self.body = PyroModule[nn.Sequential](*layers)
        self.head = PyroModule[nn.Linear](inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # (B, outputs)


class ResNet20(ResNet):
    depth = 20


class ResNet32(ResNet):
    depth = 32


class ResNet44(ResNet):
    depth = 44


class ResNet56(ResNet):
    depth = 56
