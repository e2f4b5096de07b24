"""The network of the NIID benchmark."""

from __future__ import annotations

from torch import Tensor, nn


class LeNet(nn.Module):
    """Two 5 x 5 convolutions of 6 and 16 channels with ReLU and 2 x 2 max pooling, layers of 120 and 84 units, a head.

    Reference: Li, Diao, Chen, He, "Federated learning on non-IID data silos", 2022.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__()
        side = [((s - 4) // 2 - 4) // 2 for s in shape[1:]]
        self.body = nn.Sequential(
            *(nn.Conv2d(shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(16 * side[0] * side[1], 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        )
        self.head = nn.Linear(84, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # (B, outputs)
