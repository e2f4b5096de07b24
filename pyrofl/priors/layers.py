"""Priors with latent hyper-parameters, one set a layer."""

from __future__ import annotations

from pyro.nn import PyroModule

from ..bayesian import Prior, Weight


class LayerPrior(Prior):
    """Base: `layer(weight)` makes the module that holds a layer's hyper-parameters, shared by its weight and bias.

    Layer "net.body.0" has the module "net_body_0", so that a site of it is named "prior.net_body_0.scale".
    """

    def __init__(self) -> None:
        super().__init__()
        self.modules_of: dict[str, str] = {}  # layer -> name of its module

    def layer(self, weight: Weight) -> PyroModule:
        raise NotImplementedError(f"{type(self).__name__} must define layer(weight) -> PyroModule")

    def add(self, weight: Weight) -> None:
        if weight.layer in self.modules_of:
            return
        name = weight.layer.replace(".", "_")
        while hasattr(self, name):  # "net.a_b" after "net.a.b"
            name += "_"
        self.modules_of[weight.layer] = name
        setattr(self, name, self.layer(weight))

    def of(self, weight: Weight) -> PyroModule:
        """The module with the hyper-parameters of this weight's layer."""
        return getattr(self, self.modules_of[weight.layer])
