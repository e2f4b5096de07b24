"""Plain networks: PyroModules without Pyro's effects, for the fast path."""

from __future__ import annotations

from typing import Any

from pyro.nn import PyroModule
from torch import nn

_EFFECTS = ("__call__", "__getattr__", "__setattr__", "__delattr__")


def _plain(kind: Any) -> Any:
    """The subclass of a PyroModule class that behaves as an ordinary `nn.Module`; its copies do too."""
    members = {name: getattr(nn.Module, name) for name in _EFFECTS}
    return type(kind)(kind.__name__, (kind,), {**members, "__reduce__": object.__reduce__})


def plain_(root: nn.Module) -> nn.Module:
    """Take Pyro's effects from every module of `root`: reading a tensor no longer reaches Pyro's store."""
    for module in root.modules():
        if isinstance(module, PyroModule):
            module.__class__ = _plain(type(module))
    return root


def pyro_sites(root: nn.Module) -> list[str]:
    """Names of PyroSample and PyroParam attributes inside `root`."""
    return [
        f"{path}.{name}" if path else name
        for path, module in root.named_modules()
        if isinstance(module, PyroModule)
        for name in (*module._pyro_samples, *module._pyro_params)
    ]
