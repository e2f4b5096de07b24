"""Optimizers against torch's own, step for step, and their text form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from pyrofl.optim import OPTIMIZERS, SGD, SGLD, Adam, Optimizer, parse, render, with_rate
from pyrofl.random import root

torch_sgd, torch_adam = torch.optim.SGD, torch.optim.Adam
PAIRS: list[tuple[Optimizer, Callable[..., torch.optim.Optimizer]]] = [
    (SGD(0.1), lambda p: torch_sgd(p, lr=0.1)),
    (SGD(0.1, momentum=0.9), lambda p: torch_sgd(p, lr=0.1, momentum=0.9)),
    (SGD(0.1, momentum=0.9, decay=0.05), lambda p: torch_sgd(p, lr=0.1, momentum=0.9, weight_decay=0.05)),
    (SGD(0.1, decay=0.05), lambda p: torch_sgd(p, lr=0.1, weight_decay=0.05)),
    (Adam(0.1), lambda p: torch_adam(p, lr=0.1)),
    (Adam(0.1, b1=0.5, b2=0.9, eps=1e-3), lambda p: torch_adam(p, lr=0.1, betas=(0.5, 0.9), eps=1e-3)),
    (Adam(0.1, decay=0.05), lambda p: torch_adam(p, lr=0.1, weight_decay=0.05)),
]
every_pair = pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=[render(o) for o, _ in PAIRS])
START = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)


def gradient(w: torch.Tensor) -> torch.Tensor:
    """Of a badly scaled quadratic with a bend."""
    return torch.tensor([1.0, 10.0, 0.1], dtype=w.dtype) * w + torch.sin(w)


def trajectory(theirs: Callable[..., torch.optim.Optimizer], steps: int = 20) -> list[torch.Tensor]:
    w = torch.nn.Parameter(START.clone())
    optimizer, out = theirs([w]), []
    for _ in range(steps):
        w.grad = gradient(w.detach())
        optimizer.step()
        out.append(w.detach().clone())
    return out


@every_pair
def test_update_is_torchs_step(ours: Optimizer, theirs: Callable[..., torch.optim.Optimizer]) -> None:
    theta = {"a": START[:1].clone(), "b": START[1:].clone()}
    state = ours.init(theta)
    for expected in trajectory(theirs):
        g = gradient(torch.cat([theta["a"], theta["b"]]))
        theta, state = ours.update({"a": g[:1], "b": g[1:]}, state, theta)
        torch.testing.assert_close(torch.cat([theta["a"], theta["b"]]), expected, rtol=1e-12, atol=1e-12)


@every_pair
def test_the_step_in_place_is_the_same(ours: Optimizer, theirs: Callable[..., torch.optim.Optimizer]) -> None:
    w = START.clone()
    state = ours.init({"": w})
    for expected in trajectory(theirs):
        ours.step_(w, gradient(w), state)
        torch.testing.assert_close(w, expected, rtol=1e-12, atol=1e-12)


@every_pair
def test_update_changes_no_argument(ours: Optimizer, theirs: object) -> None:
    theta, g = {"w": START.clone()}, {"w": gradient(START)}
    state = ours.init(theta)
    kept = {k: v.clone() for k, v in state.items()}
    ours.update(g, state, theta)
    assert torch.equal(theta["w"], START) and torch.equal(g["w"], gradient(START))
    assert all(torch.equal(state[k], kept[k]) for k in kept)


def test_rates_may_be_tensors_and_mapped_over() -> None:
    rates = torch.tensor([0.1, 0.01], dtype=torch.float64)
    for kind in (SGD(momentum=0.9), Adam()):

        def two_steps(lr: torch.Tensor, kind: Optimizer = kind) -> torch.Tensor:
            o, theta = with_rate(kind, lr), {"w": START}
            state = o.init(theta)
            for _ in range(2):
                theta, state = o.update({"w": gradient(theta["w"])}, state, theta)
            return theta["w"]

        both = vmap(two_steps)(rates)
        for i, lr in enumerate((0.1, 0.01)):
            torch.testing.assert_close(both[i], two_steps(lr), rtol=1e-12, atol=0)  # type: ignore[arg-type]


positive = st.floats(1e-12, 1e6)
unit = st.floats(0, 1, exclude_max=True)
OURS = st.one_of(
    st.builds(SGD, lr=positive, decay=st.floats(0, 10), momentum=unit),
    st.builds(Adam, lr=positive, decay=st.floats(0, 10), b1=unit, b2=unit, eps=positive),
)


@given(OURS)
def test_text_comes_back_as_the_same_optimizer(optimizer: Optimizer) -> None:
    assert parse(render(optimizer)) == optimizer


def test_text_forms() -> None:
    assert parse("adam:1e-2") == Adam(1e-2)
    assert parse(" sgd : 0.1 , momentum = 0.9, decay=1e-4 ") == SGD(0.1, momentum=0.9, decay=1e-4)
    assert render(SGD(0.1)) == "sgd:0.1"
    assert render(Adam(0.001, b1=0.5)) == "adam:0.001,b1=0.5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adm:1e-2", "unknown name 'adm'; did you mean \"adam\"?"),
        ("adam", "the rate is missing; write for example adam:1e-2"),
        ("adam:", "the rate is missing"),
        ("adam:fast", "lr = 'fast' is not a number"),
        ("sgd:0.1,momentun=0.9", "unknown field 'momentun'; did you mean \"momentum\"?"),
        ("sgd:0.1,momentum", "momentum = '' is not a number"),
        ("sgd:0", "the rate must be positive and finite"),
        ("sgd:-1", "the rate must be positive and finite"),
        ("sgd:nan", "the rate must be positive and finite"),
        ("sgd:inf", "the rate must be positive and finite"),
        ("sgd:0.1,momentum=1.0", "momentum must be"),
        ("sgd:0.1,momentum=nan", "momentum must be"),
        ("sgd:0.1,decay=-1", "decay must be"),
        ("adam:0.1,b1=1.5", "b1 must be"),
        ("adam:0.1,b2=-0.5", "b2 must be"),
        ("adam:0.1,eps=0", "eps must be"),
        ("sgd:0.1,decay=0.1,decay=0.2", "decay is given twice"),
        ("", "unknown name ''"),
    ],
)
def test_texts_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        parse(text)
    assert message in str(error.value) and repr(text) in str(error.value)


def test_every_optimizer_has_a_text_form() -> None:
    for name, kind in OPTIMIZERS.items():
        assert render(kind()).startswith(f"{name}:")
        assert type(parse(f"{name}:0.5")) is kind


def test_langevin_steps_have_the_stationary_law_of_the_target() -> None:
    """Of exp(-n a theta^2 / 2): the recursion's own variance is 1 / (n a (1 - lr a / 2)). 20,000 independent chains."""
    a, n, lr = 0.8, 5.0, 0.3
    theta = {"w": torch.full((20000,), 3.0, dtype=torch.float64)}
    sampler = SGLD(lr, temperature=1 / n, key=root(7))
    state = sampler.init(theta)
    for _ in range(60):
        theta, state = sampler.update({"w": a * theta["w"]}, state, theta)
    assert abs(float(theta["w"].mean())) < 0.02
    assert float(theta["w"].var()) == pytest.approx(1 / (n * a * (1 - lr * a / 2)), rel=0.04)


def test_langevin_noise_follows_from_the_key_alone_and_is_new_in_every_step() -> None:
    theta = {"w": torch.zeros(3, dtype=torch.float64)}
    path = []
    for key in (1, 1, 2):
        sampler, at = SGLD(0.5, key=root(key)), theta
        state, steps = sampler.init(theta), []
        for _ in range(2):
            new, state = sampler.update({"w": torch.zeros(3, dtype=torch.float64)}, state, at)
            steps.append((new["w"] - at["w"]).tolist())
            at = new
        path.append(steps)
    assert path[0] == path[1] != path[2]
    assert path[0][0] != path[0][1]
