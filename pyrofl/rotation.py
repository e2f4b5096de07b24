"""Rotation of images: a covariate shift that leaves labels alone."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def rotated(x: Tensor, degrees: float) -> Tensor:
    """Images (N, channels, height, width) turned counter-clockwise about their centre, of the same shape.

    Bilinear between pixels, zero beyond the edges, computed in float64: a quarter turn of a square image is
    `torch.rot90`, and a whole turn, or none, leaves it bit for bit.
    """
    if degrees % 360 == 0 or not len(x):
        return x
    height, width = x.shape[2:]
    turn = math.radians(degrees)
    c, s = math.cos(turn), math.sin(turn)
    # where each pixel comes from, in coordinates from -1 to 1 over the width and over the height
    source = torch.tensor([[c, -s * height / width, 0], [s * width / height, c, 0]], dtype=torch.float64)
    grid = F.affine_grid(source.to(x.device)[None], [1, 1, height, width], align_corners=False)
    many = grid.expand(len(x), -1, -1, -1)
    return F.grid_sample(x.double(), many, mode="bilinear", padding_mode="zeros", align_corners=False).to(x)
