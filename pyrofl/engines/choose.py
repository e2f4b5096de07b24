"""Which engine runs, and why."""

from __future__ import annotations

import torch
from torch import nn

from ..names import nearest
from ..program import Program
from .base import Engine
from .sequential import Sequential
from .vectorised import Vectorised

ENGINES = ("auto", "sequential", "vectorised", "flower")
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_SMALL = 200_000  # weights: above this a client's own matrix products fill two cores


def choose(name: str, program: Program, device: torch.device) -> tuple[Engine, str]:
    """The faster engine for this network and device, where the name is "auto"; with the reason in one sentence."""
    if name == "sequential":
        return Sequential(), "as configured"
    if name == "vectorised":
        return Vectorised(), "as configured"
    if name == "flower":
        raise ValueError("engine 'flower' is more than an engine: assemble(config).run(...) makes its run")
    if name != "auto":
        raise ValueError(f"unknown engine {name!r}{nearest(name, ENGINES)}")
    if device.type != "cpu":
        return Vectorised(), f"clients run together on {device.type}"
    if any(isinstance(m, _CONVOLUTIONS) for m in program.model.modules()):
        return Sequential(), "convolutions with a weight for each client are slow on the CPU"
    weights = sum(v.numel() for v in program.theta0.values())
    if weights > _SMALL:
        return Sequential(), f"{weights:,} parameters keep the CPU busy with one client at a time"
    return Vectorised(), "a small dense network: many clients cost little more than one"
