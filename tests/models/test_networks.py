"""The networks of the experiments: shapes, hand-computed forwards, sizes known from the papers, and lifts."""

import pyro
import pytest
import torch
from torch import nn

from models.convnet import ConvNet
from models.logistic import Logistic
from models.mlp import MLP
from models.poisson import Poisson
from models.resnet import ResNet20, ResNet32, ResNet44, ResNet56
from pyrofl import random
from pyrofl.bayesian import Bayesian
from pyrofl.data import Batch, Data
from pyrofl.methods import FedAvg
from pyrofl.optim import SGD
from pyrofl.priors import Gaussian
from pyrofl.program import Program

TABLE, IMAGE = (7,), (2, 9, 8)
NETWORKS = {
    "logistic": (Logistic, TABLE, {}),
    "logistic image": (Logistic, IMAGE, {}),
    "mlp": (MLP, TABLE, {"hidden": 5}),
    "mlp image": (MLP, IMAGE, {"hidden": 5, "layers": 2, "dropout": 0.2}),
    "convnet": (ConvNet, IMAGE, {"channels": 3, "hidden": 6}),
    "convnet dropout": (ConvNet, IMAGE, {"channels": 3, "hidden": 6, "dropout": 0.1}),
    "convnet group": (ConvNet, IMAGE, {"channels": 4, "hidden": 6, "norm": "group", "groups": 2}),
    "resnet group": (ResNet20, IMAGE, {"width": 4, "groups": 2}),
    "resnet batch": (ResNet20, IMAGE, {"width": 4, "norm": "batch", "shortcut": "B"}),
    "resnet none": (ResNet20, IMAGE, {"width": 4, "norm": "none", "dropout": 0.1}),
}


def build(name, outputs=3, dtype=torch.float32):
    kind, shape, options = NETWORKS[name]
    return kind(shape=shape, outputs=outputs, **options).to(dtype), shape


def rows(shape, n=4, dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(n, *shape, generator=draw, dtype=dtype), torch.randint(3, (n,), generator=draw)


@pytest.fixture(autouse=True)
def empty_store():
    """Pyro keeps the parameters of a PyroModule that runs outside of pyrofl."""
    yield
    pyro.clear_param_store()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_work_as_plain_networks(name):
    net, shape = build(name)
    net.eval()
    x, y = rows(shape)
    out = net(x)
    assert out.shape == (4, 3)
    torch.testing.assert_close(out, net.head(net.body(x)))
    assert isinstance(net.head, nn.Linear)
    nn.functional.cross_entropy(out, y).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_lifted_networks_compute_what_the_plain_ones_do(name):
    net, shape = build(name, dtype=torch.float64)
    net.eval()
    x, y = rows(shape, dtype=torch.float64)
    program = Program(Bayesian(net, Gaussian(), points=()), x, y)
    assert program._fast is not None
    q = {f"net.{k}": (v, torch.ones_like(v)) for k, v in net.named_parameters()}
    theta = {**program.theta0, **program.guide_of(q)}
    torch.testing.assert_close(program.predict(theta, x, None), net(x).log_softmax(-1))
    every = program.names("head") | (program.names("body") if name.split()[0] != "logistic" else frozenset())
    assert every == program.theta0.keys()


@pytest.mark.parametrize("name", NETWORKS)
def test_lifted_networks_train_without_touching_pyros_store(name):
    net, shape = build(name)
    x, y = rows(shape)
    program = Program(Bayesian(net, Gaussian()), x, y)
    method = FedAvg(program, optimizer=SGD(0.01), size=3)
    reply = method.local(method.init(random.root(0)), {}, Data.of(x, y), random.root(1))
    assert all(v.isfinite().all() for v in reply.up.values())
    assert list(pyro.get_param_store().keys()) == []


@pytest.mark.parametrize("name", [n for n in NETWORKS if not n.startswith("logistic")])
def test_the_first_weights_get_a_gradient(name):
    net, shape = build(name)
    x, y = rows(shape)
    program = Program(Bayesian(net, Gaussian(0.1)), x, y)
    theta = program.init(random.root(0))
    first = program.loc_name(program.sites[0])
    leaves = {k: v.clone().requires_grad_(k == first) for k, v in theta.items()}
    program.parts(leaves, Batch.of(x, y), random.root(1))[0].backward()
    assert leaves[first].grad.abs().max() > 0


def test_logistic_is_linear():
    net = Logistic((2, 2), 3)
    with torch.no_grad():
        net.head.weight.copy_(torch.arange(12.0).reshape(3, 4))
        net.head.bias.copy_(torch.tensor([1.0, 0.0, -1.0]))
    out = net(torch.tensor([[[1.0, 2.0], [0.0, -1.0]]]))
    assert out.tolist() == [[0 + 2 + 0 - 3 + 1.0, 4 + 10 - 7.0, 8 + 18 - 11 - 1.0]]


def test_mlp_has_the_layers_it_was_asked_for():
    net = MLP((3, 2), 5, hidden=7, layers=3, dropout=0.1)
    shapes = [tuple(m.weight.shape) for m in net.modules() if isinstance(m, nn.Linear)]
    assert shapes == [(7, 6), (7, 7), (7, 7), (5, 7)]
    assert [m.p for m in net.modules() if isinstance(m, nn.Dropout)] == [0.1] * 3
    assert not any(isinstance(m, nn.Dropout) for m in MLP((3,), 5).modules())


def test_mlp_by_hand():
    net = MLP((2,), 1, hidden=2)
    with torch.no_grad():
        net.body[1].weight.copy_(torch.tensor([[1.0, -1.0], [2.0, 0.0]]))
        net.body[1].bias.copy_(torch.tensor([0.5, -3.0]))
        net.head.weight.copy_(torch.tensor([[2.0, 4.0]]))
        net.head.bias.copy_(torch.tensor([-1.0]))
    assert net(torch.tensor([[1.0, 2.0], [3.0, 1.0]])).tolist() == [[-1.0], [2 * 2.5 + 4 * 3.0 - 1.0]]


def test_convnet_is_the_mnist_network_of_federated_averaging():
    assert sum(p.numel() for p in ConvNet((1, 28, 28), 10).parameters()) == 1_663_370


@pytest.mark.parametrize("layer", ["body.0", "body.4", "body.9"])
def test_normalised_layers_of_a_convnet_do_not_feel_the_scale_of_their_weights(layer):
    net, shape = build("convnet group", dtype=torch.float64)
    x, _ = rows(shape, dtype=torch.float64)
    before = net(100 * x)
    with torch.no_grad():
        for value in net.get_submodule(layer).parameters():
            value.mul_(7.0)
    torch.testing.assert_close(net(100 * x), before, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "layers", "plain", "projected"),
    [
        (ResNet20, 20, 269_722, 272_474),
        (ResNet32, 32, 464_154, 466_906),
        (ResNet44, 44, 658_586, 661_338),
        (ResNet56, 56, 853_018, 855_770),
    ],
)
def test_resnets_have_the_papers_sizes(kind, layers, plain, projected):
    """0.27, 0.46, 0.66 and 0.85 million parameters in table 6 of the paper; a norm has two a channel."""
    net = kind((3, 32, 32), 10, norm="batch")
    weighted = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(weighted) == layers
    assert sum(p.numel() for p in net.parameters()) == plain
    assert sum(p.numel() for p in kind((3, 32, 32), 10, shortcut="B").parameters()) == projected


def test_resnets_halve_the_image_twice():
    net = ResNet20((1, 12, 12), 4)
    shapes = []
    for layer in net.body:
        layer.register_forward_hook(lambda m, i, out: shapes.append(tuple(out.shape[1:])))
    net(torch.zeros(1, 1, 12, 12))
    blocks = shapes[3:12]
    assert blocks == [(16, 12, 12)] * 3 + [(32, 6, 6)] * 3 + [(64, 3, 3)] * 3
    assert shapes[-1] == (64,)


def test_option_a_subsamples_and_pads_with_zeros():
    net = ResNet20((1, 8, 8), 4, width=2, groups=1)
    x = torch.arange(32.0).reshape(1, 2, 4, 4)
    out = net.body[6].shortcut(x)
    assert out.shape == (1, 4, 2, 2)
    assert out[0, 0].tolist() == [[0.0, 2.0], [8.0, 10.0]] and out[0, 1].tolist() == [[16.0, 18.0], [24.0, 26.0]]
    assert (out[0, 2:] == 0).all()


def test_resnets_without_norms_start_with_blocks_that_do_nothing():
    net = ResNet56((1, 8, 8), 4, norm="none")
    x = torch.rand(2, 16, 8, 8)
    assert torch.equal(net.body[3](x), x)
    assert net(torch.rand(2, 1, 8, 8)).abs().max() < 10


@pytest.mark.parametrize("kind", [ConvNet, ResNet20])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((13,), r"needs images \(channels, height, width\), one row here has shape \(13,\)"),
        ((28, 28), r"one row here has shape \(28, 28\)"),
        ((3, 2, 9), "at least 4 x 4 pixels, these are 2 x 9"),
    ],
)
def test_rows_that_are_no_images_are_refused(kind, shape, message):
    with pytest.raises(ValueError, match=f"{kind.__name__} needs images|{message}") as error:
        kind(shape, 10)
    assert kind.__name__ in str(error.value)
    error.match(message)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP((3,), 2, hidden=0), "hidden and layers must be at least 1, got 0 and 1"),
        (lambda: MLP((3,), 2, layers=0), "got 100 and 0"),
        (lambda: ConvNet(IMAGE, 2, channels=0), "channels and hidden must be at least 1"),
        (lambda: ConvNet(IMAGE, 2, norm="batch"), "norm must be one of none, group, got 'batch'"),
        (lambda: ConvNet(IMAGE, 2, channels=6, norm="group"), "channels must be a multiple of groups, got 6 and 4"),
        (lambda: ConvNet(IMAGE, 2, norm="group", groups=0), "channels must be a multiple of groups, got 32 and 0"),
        (lambda: ResNet20(IMAGE, 2, norm="layer"), "norm must be one of group, batch, none, got 'layer'"),
        (lambda: ResNet20(IMAGE, 2, shortcut="C"), "shortcut must be one of A, B, got 'C'"),
        (lambda: ResNet20(IMAGE, 2, width=6, groups=4), "width must be a multiple of groups, got width 6 and groups 4"),
        (lambda: Poisson((3,), 2), "one output, the log-rate, not 2"),
    ],
)
def test_impossible_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
