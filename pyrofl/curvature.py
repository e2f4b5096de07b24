"""What a client's rows say about each weight: diagonals of the Fisher information, expected and observed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.nn.functional import linear, one_hot

from .data import Data
from .likelihoods import information
from .program import Program
from .tree import Tree, only, pack, part, without

_AT_ONCE = 1 << 24  # numbers of the rows' Jacobians


def fisher_diagonal(program: Program, theta: Tree, data: Data, *, size: int | None = None) -> Tree:
    """site -> sum over rows of diag(J' F J), with the shape of the site; never negative, 0 without rows.

    J is the Jacobian of a row's predictive parameters (see `likelihoods`), F their Fisher information: for canonical
    links the Gauss-Newton approximation of the Hessian of -log p(y | x, w). A linear layer z = W h + b has
    dp_k / dW = (dp_k / dz) h', so that its diagonal is (sum_k F_k (dp_k / dz)^2) (h^2)': exact, and its weights are
    never spread out over rows and outputs. All other weights are, for `size` rows at a time (None: as many as have
    sixteen million numbers of J).
    """
    layers = linear_layers(program)
    named = {(layer, end): program.loc_name(f"net.{layer}.{end}") for layer in layers for end in ("weight", "bias")}
    every = only(theta, {program.loc_name(s) for s in program.sites})
    free = {
        **without(every, set(named.values())),
        **pack(push={k: every[named[k, "weight"]].new_zeros(m.out_features) for k, m in layers.items()}),
    }

    def row(at: Tree, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tree]]:
        with _pushed(layers, part(at, "push")) as inputs:
            out = program.predict({**theta, **only(at, theta)}, x.unsqueeze(0), None).squeeze(0)  # (K,)
        return out, (out, {k: h.squeeze(0) for k, h in inputs.items()})

    outputs = program.predict(program.theta0, program.example[:1], None).shape[-1]
    many = _AT_ONCE // (outputs * sum(v.numel() for v in free.values()))
    total = {k: torch.zeros_like(v) for k, v in every.items()}
    for batch in data.chunks(size or max(many, 1)):
        J, (out, inputs) = vmap(jacrev(row, has_aux=True), (None, 0))(free, batch.x)  # (B, K, ...), (B, K), (B, in)
        F = information(program.kind, out) * batch.live.unsqueeze(-1)  # (B, K)
        for k in free.keys() & total.keys():
            total[k] = total[k] + torch.tensordot(F, J[k].square(), 2)
        for k, h in inputs.items():
            squares = torch.einsum("bk,bko->bo", F, J[f"push/{k}"].square())
            for end, of_rows in (("weight", squares.T @ h.square()), ("bias", squares.sum(0))):
                if (name := named[k, end]) in total:
                    total[name] = total[name] + of_rows
    return {s: total[program.loc_name(s)] for s in program.sites}


def head_scores(program: Program, theta: Tree, data: Data, names: Collection[str], *, size: int = 256) -> Tree:
    """Sum over rows of the squared scores d log p(y | x) / dw of a classifier's linear head, for its weights `names`.

    The score of a softmax or logistic head is the residual p - y times the head's input h, 1 for the bias, row by row.
    """
    weight, bias = (next((k for k in names if program.path(k).endswith(e)), "") for e in (".weight", ".bias"))
    total = {k: torch.zeros_like(theta[k]) for k in names}
    for batch in data.chunks(size):
        h = program.features(theta, batch.x)  # (B, H)
        out = linear(h, theta[weight], theta.get(bias))  # (B, C)
        if program.kind == "categorical":
            residual = torch.softmax(out, 1) - one_hot(batch.y, out.shape[1])
        else:
            residual = torch.sigmoid(out) - batch.y.unsqueeze(1)
        squares = torch.where(batch.live.unsqueeze(1), residual, 0).square()  # (B, C)
        total[weight] = total[weight] + squares.T @ h.square()
        if bias:
            total[bias] = total[bias] + squares.sum(0)
    return total


def linear_layers(program: Program) -> dict[str, nn.Linear]:
    """Path in the network -> its linear layers that a forward pass calls once, on one vector a row.

    It is taken for granted that only the layer itself reads its weight. Empty where the program is traced by Pyro.
    """
    if program.fast_path is None:
        return {}
    net, calls, plain = program.fast_path.net.net, Counter[str](), set[str]()
    found = {
        path: module
        for path, module in net.named_modules()
        if isinstance(module, nn.Linear) and f"net.{path}.weight" in program.sites
    }

    def hook_of(path: str) -> Any:
        def hook(module: nn.Linear, given: tuple[Tensor, ...], out: Tensor) -> None:
            calls[path] += 1
            if given[0].dim() == 2 and torch.allclose(out, linear(given[0], module.weight, module.bias)):
                plain.add(path)

        return hook

    with _hooked(found, hook_of), torch.no_grad():
        program.predict(program.theta0, program.example[:1], None)
    return {path: module for path, module in found.items() if calls[path] == 1 and path in plain}


@contextmanager
def _pushed(layers: dict[str, nn.Linear], push: Tree) -> Iterator[Tree]:
    """Adds `push` to the outputs of layers, and yields the inputs (B, in) that they get."""
    inputs: Tree = {}

    def hook_of(path: str) -> Any:
        def hook(module: nn.Linear, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
            inputs[path] = given[0]
            return out + push[path]

        return hook

    with _hooked(layers, hook_of):
        yield inputs


@contextmanager
def _hooked(layers: dict[str, nn.Linear], hook_of: Callable[[str], Any]) -> Iterator[None]:
    """Forward hooks on layers, which are shared by all who run the network, and so are taken off again."""
    with ExitStack() as hooks:
        for path, module in layers.items():
            hooks.callback(module.register_forward_hook(hook_of(path)).remove)
        yield
