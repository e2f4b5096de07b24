"""The lift of a network: sites, points, tied weights, keyed dropout, and batch normalisation without hidden state."""

import pyro
import pyro.distributions as dist
import pytest
import torch
import torchvision
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from torch import nn

from pyrofl import random
from pyrofl.bayesian import BatchNorm, Bayesian, Dropout, forward_pass, purify_
from pyrofl.data import Batch, Data
from pyrofl.fit import fit
from pyrofl.optim import SGD
from pyrofl.priors import Gaussian
from pyrofl.program import Program


class Net(nn.Module):
    def __init__(self, *middle):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), *middle, nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


def rows(n=6, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=draw, dtype=dtype), torch.randint(2, (n,), generator=draw)


def sites(model):
    return [w.site for w in model.weights]


# ---------------------------------------------------------------------- sites and points


def test_every_weight_is_a_sample_site_with_the_networks_shape():
    net = Net()
    model = Bayesian(net, Gaussian())
    with torch.random.fork_rng(devices=[]):
        trace = poutine.trace(model).get_trace(rows(dtype=torch.float32)[0])
    expected = {f"net.{name}": tuple(p.shape) for name, p in net.named_parameters()}
    drawn = {n: tuple(trace.nodes[n]["value"].shape) for n in trace.stochastic_nodes if n.startswith("net.")}
    assert drawn == expected
    assert list(model.named_parameters()) == []


@pytest.mark.parametrize(
    ("points", "left"),
    [
        (("norm",), ["net.body.0.weight", "net.body.0.bias", "net.head.weight", "net.head.bias"]),
        ((), ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight", "head.bias"]),
        (("norm", "bias"), ["body.0.weight", "head.weight"]),
        (("body",), ["head.weight", "head.bias"]),
        (("head", "norm"), ["body.0.weight", "body.0.bias"]),
        (("net.head.weight", "norm"), ["body.0.weight", "body.0.bias", "head.bias"]),
    ],
)
def test_points_have_no_prior(points, left):
    model = Bayesian(Net(nn.BatchNorm1d(4)), Gaussian(), points=points)
    assert sites(model) == [f"net.{n.removeprefix('net.')}" for n in left]
    points_left = {f"net.{n}" for n, _ in model.net.named_parameters()}
    every = {f"net.{n}" for n, _ in Net(nn.BatchNorm1d(4)).named_parameters()}
    assert points_left == every - set(sites(model))


def test_points_are_trained_as_point_estimates():
    program = Program(Bayesian(Net().double(), Gaussian(), points=("body",)), *rows())
    point = "model.net.body.0.weight"
    assert point in program.trainable and "net.body.0.weight" not in program.sites
    theta = program.init(random.root(0))
    after, _ = fit(program.parts, theta, Data.of(*rows()), random.root(1), optimizer=SGD(0.1), epochs=2, size=3)
    assert not torch.equal(after[point], theta[point])


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (("nrom",), 'unknown entry of points .nrom.; did you mean "norm"'),
        (("net.head.wieght",), 'did you mean "net.head.weight"'),
    ],
)
def test_unknown_points_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        Bayesian(Net(), Gaussian(), points=points)


def test_a_network_without_a_head_has_no_head_to_keep():
    with pytest.raises(ValueError, match="unknown entry of points 'head'"):
        Bayesian(nn.Sequential(nn.Linear(3, 2)), Gaussian(), points=("head",))


def test_nothing_but_points_is_refused():
    with pytest.raises(ValueError, match="every parameter of the network is a point"):
        Bayesian(Net(), Gaussian(), points=("body", "head"))
    with pytest.raises(ValueError, match="Flatten has no parameters"):
        Bayesian(nn.Flatten(), Gaussian())


def test_unknown_likelihoods_are_refused():
    with pytest.raises(ValueError, match=r'unknown likelihood .categorial.; did you mean "categorical"'):
        Bayesian(Net(), Gaussian(), "categorial")


def test_tied_weights_are_refused_by_name():
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    with pytest.raises(ValueError, match=r"net.2.weight shares its tensor with net.0.weight: tied weights"):
        Bayesian(net, Gaussian())


def test_a_layer_used_under_two_names_is_refused():
    layer = nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"net.2.weight shares its tensor with net.0.weight"):
        Bayesian(nn.Sequential(layer, nn.ReLU(), layer), Gaussian())


def test_a_network_with_its_own_sites_is_refused():
    net = PyroModule[nn.Sequential](PyroModule[nn.Linear](3, 2))
    net[0].weight = PyroSample(dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    with pytest.raises(ValueError, match=r"Pyro sites of its own \(0.weight\)"):
        Bayesian(net, Gaussian())


def test_lifting_draws_nothing_and_leaves_the_network_alone():
    net = Net(nn.BatchNorm1d(4), nn.Dropout(0.5))
    before, state = torch.get_rng_state(), {k: v.clone() for k, v in net.state_dict().items()}
    Bayesian(net, Gaussian())
    assert torch.equal(torch.get_rng_state(), before)
    assert [type(m) for m in net.body] == [nn.Linear, nn.BatchNorm1d, nn.Dropout, nn.ReLU]
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


def test_a_pyro_network_that_ran_before_can_be_lifted():
    net = PyroModule[nn.Sequential](PyroModule[nn.Linear](3, 2))
    x, y = rows(dtype=torch.float32)
    net(x)
    pyro.clear_param_store()  # Pyro keeps the parameters of a module that ran
    program = Program(Bayesian(net, Gaussian()), x, y)
    theta = program.init(random.root(0))
    assert program.predict(theta, x, None).shape == (6, 2)
    assert list(pyro.get_param_store().keys()) == []


# ---------------------------------------------------------------------- torchvision networks


def test_batch_norms_of_a_torchvision_network_are_found_by_type():
    net = torchvision.models.resnet18(num_classes=10)
    names = [n for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(names) == 20 and "layer2.0.downsample.1" in names  # not every name says "bn"
    model = Bayesian(net, Gaussian())
    lifted = {n: m for n, m in model.net.named_modules() if isinstance(m, BatchNorm)}
    assert sorted(lifted) == sorted(names)
    assert all(m.name == n for n, m in lifted.items())
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.net.modules())
    assert not any(f".{n}." in w.site for n in names for w in model.weights)


def test_a_torchvision_network_trains_and_predicts():
    net = torchvision.models.mobilenet_v2(num_classes=10)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 3, 32, 32, generator=draw), torch.randint(10, (4,), generator=draw)
    program = Program(Bayesian(net, Gaussian(0.1)), x, y)
    assert len(program.buffers) == 2 * 52 and program.has_dropout
    theta = program.init(random.root(0))
    after, info = fit(program.parts, theta, Data.of(x, y), random.root(1), optimizer=SGD(1e-3), epochs=1, size=4)
    fresh = program.refresh(after, Data.of(x, y))
    assert info["loss"].isfinite()
    changed = [k for k in program.buffers if not torch.equal(fresh[k], theta[k])]
    assert len(changed) == len(program.buffers)
    out = program.predict(fresh, x, None)
    assert out.shape == (4, 10) and out.exp().sum(-1).allclose(torch.ones(4))


# ---------------------------------------------------------------------- batch normalisation


def normed(**options):
    return Program(Bayesian(Net(nn.BatchNorm1d(4)).double(), Gaussian(), **options), *rows())


def inputs_of_the_norm(program, theta, x):
    q = program.posterior(theta)
    return x @ q["net.body.0.weight"][0].T + q["net.body.0.bias"][0]


MEAN, VAR = "model.net.body.1.running_mean", "model.net.body.1.running_var"


@pytest.mark.parametrize("size", [4, 7, 256])
def test_refreshed_statistics_are_those_of_all_rows_at_the_posterior_mean(size):
    program = normed()
    theta = program.init(random.root(0))
    x, y = rows(20, seed=1)
    fresh = program.refresh(theta, Data.of(x, y), size=size)
    z = inputs_of_the_norm(program, theta, x)
    torch.testing.assert_close(fresh[MEAN], z.mean(0))
    torch.testing.assert_close(fresh[VAR], z.var(0, correction=0))
    assert all(torch.equal(fresh[k], theta[k]) for k in theta.keys() - program.buffers)
    assert fresh.keys() == theta.keys()


def test_refreshed_statistics_ignore_padding():
    program = normed()
    theta = program.init(random.root(0))
    x, y = rows(20, seed=1)
    padded = Data(torch.cat([x[:13], torch.full((7, 3), torch.nan)]), y, torch.tensor(13))
    fresh, short = program.refresh(theta, padded, size=5), program.refresh(theta, Data.of(x[:13], y[:13]), size=5)
    for name in program.buffers:
        torch.testing.assert_close(fresh[name], short[name])


def test_a_client_without_rows_keeps_the_statistics_it_got():
    program = normed()
    theta = program.init(random.root(0))
    x, y = rows(4)
    fresh = program.refresh(theta, Data(x, y, torch.tensor(0)))
    assert all(torch.equal(fresh[k], theta[k]) for k in theta)


def test_statistics_of_a_convolution_are_over_rows_and_pixels():
    class Images(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
            self.head = nn.Linear(2 * 4 * 4, 2)

        def forward(self, x):
            return self.head(self.body(x))

    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 1, 6, 6, generator=draw, dtype=torch.float64), torch.randint(2, (5,), generator=draw)
    program = Program(Bayesian(Images().double(), Gaussian()), x, y)
    theta = program.init(random.root(0))
    fresh = program.refresh(theta, Data.of(x, y), size=2)
    q = program.posterior(theta)
    z = nn.functional.conv2d(x, q["net.body.0.weight"][0], q["net.body.0.bias"][0])
    torch.testing.assert_close(fresh[MEAN], z.mean((0, 2, 3)))
    torch.testing.assert_close(fresh[VAR], z.var((0, 2, 3), correction=0))


def test_training_uses_the_batchs_distinct_rows_only():
    norm = BatchNorm(nn.BatchNorm1d(2).double(), "norm")
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0], [100.0, -50.0]], dtype=torch.float64)
    with forward_pass(rows=torch.tensor([True, True, False])) as now:
        out = norm(x)
    mean, var = now.statistics["norm"]
    assert mean.tolist() == [2.0, 4.0] and var.tolist() == [1.0, 4.0]
    torch.testing.assert_close(
        out[:2], torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64), atol=1e-4, rtol=0
    )


def test_a_training_pass_is_torchs_own_batch_norm():
    theirs = nn.BatchNorm2d(3).double()
    with torch.no_grad():
        theirs.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        theirs.bias.copy_(torch.tensor([0.5, -1.0, 0.0]))
    ours = BatchNorm(theirs, "norm")
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with forward_pass(rows=torch.ones(4, dtype=torch.bool)):
        torch.testing.assert_close(ours(x), theirs(x))
    theirs.eval()
    theirs.running_mean.copy_(torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(BatchNorm(theirs, "norm")(x), theirs(x))


def test_a_batch_of_one_row_maps_to_the_bias():
    norm = BatchNorm(nn.BatchNorm1d(2), "norm")
    with torch.no_grad():
        norm.bias.copy_(torch.tensor([0.5, -1.0]))
    with forward_pass(rows=torch.tensor([True])) as now:
        out = norm(torch.tensor([[7.0, -3.0]]))
    assert torch.equal(out, norm.bias[None])
    assert now.statistics["norm"][1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("n", "size"), [(1, 4), (5, 4), (3, 1)])
def test_clients_and_batches_of_one_row_train(n, size):
    program = normed()
    theta = program.init(random.root(0))
    data = Data.of(*rows(n))
    after, _ = fit(program.parts, theta, data, random.root(1), optimizer=SGD(0.1), epochs=2, size=size)
    fresh = program.refresh(after, data)
    assert all(v.isfinite().all() for v in fresh.values())
    assert (fresh[VAR] >= 0).all()
    assert program.predict(fresh, rows(4)[0], None).isfinite().all()


def test_a_local_step_never_changes_running_statistics():
    program = normed()
    theta = program.init(random.root(0))
    after, _ = fit(
        program.parts,
        theta,
        Data.of(*rows(12)),
        random.root(1),
        optimizer=SGD(0.1),
        epochs=2,
        size=4,
        names=program.trainable,
    )
    assert torch.equal(after[MEAN], theta[MEAN]) and torch.equal(after[VAR], theta[VAR])


def test_prediction_changes_no_buffer_and_each_row_stands_alone():
    program = normed()
    x, y = rows(12, seed=2)
    theta = program.refresh(program.init(random.root(0)), Data.of(x, y))
    before = {k: v.clone() for k, v in theta.items()}
    buffers = {k: v.clone() for k, v in program.model.named_buffers()}
    program.model.train()
    whole = program.predict(theta, x, random.root(1))
    alone = torch.cat([program.predict(theta, row[None], random.root(1)) for row in x])
    torch.testing.assert_close(whole, alone)
    assert all(torch.equal(theta[k], before[k]) for k in theta)
    assert all(torch.equal(v, buffers[k]) for k, v in program.model.named_buffers())
    z = inputs_of_the_norm(program, theta, x)
    q = program.posterior(theta)
    hidden = ((z - theta[MEAN]) / (theta[VAR] + 1e-5).sqrt()).relu()
    logits = hidden @ q["net.head.weight"][0].T + q["net.head.bias"][0]
    torch.testing.assert_close(program.predict(theta, x, None), logits.log_softmax(-1))


def test_a_batch_norm_without_scale_and_shift_only_standardises():
    norm = BatchNorm(nn.BatchNorm1d(2, affine=False, track_running_stats=False), "norm")
    with forward_pass(rows=torch.tensor([True, True])):
        out = norm(torch.tensor([[0.0, 10.0], [2.0, 30.0]]))
    torch.testing.assert_close(out, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), atol=1e-4, rtol=0)


# ---------------------------------------------------------------------- dropout


def test_dropout_is_off_without_a_key_and_drawn_from_it_with_one():
    drop = Dropout(0.25, "drop")
    x = torch.ones(200, 50)
    assert torch.equal(drop(x), x)
    outs = []
    for key in (0, 0, 1):
        with forward_pass(key=random.root(key)):
            outs.append(drop(x))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    assert outs[0].unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    kept = (outs[0] > 0).double().mean().item()
    assert abs(kept - 0.75) < 4 * (0.75 * 0.25 / x.numel()) ** 0.5


def test_two_dropouts_of_a_network_draw_apart():
    net = purify_(nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5))))
    x = torch.ones(100, 100)
    with forward_pass(key=random.root(0)):
        first, second = net[0](x), net[1][0](x)
    assert [net[0].name, net[1][0].name] == ["0", "1.0"]
    agree = (first == second).double().mean().item()
    assert abs(agree - 0.5) < 4 * 0.5 / 100


def test_channel_dropout_drops_whole_channels():
    net = purify_(nn.Sequential(nn.Dropout2d(0.5)))
    with forward_pass(key=random.root(0)):
        out = net(torch.ones(20, 8, 3, 3))
    flat = out.flatten(2)
    assert torch.equal(flat.amin(-1), flat.amax(-1))
    assert 0 < (flat.amax(-1) > 0).double().mean() < 1


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5])
def test_impossible_dropout_is_refused(p):
    with pytest.raises(ValueError, match=r"dropout 'drop': p must be in \[0, 1\)"):
        Dropout(p, "drop")


def test_dropout_is_on_in_training_and_at_choice_in_prediction():
    program = Program(Bayesian(Net(nn.Dropout(0.5)).double(), Gaussian()), *rows())
    theta, (x, y) = program.init(random.root(0)), rows()
    _, parts = program.parts(theta, Batch.of(x, y), random.root(1))
    assert program.has_dropout
    off = [program.predict(theta, x, random.root(2)) for _ in range(2)]
    on = [program.predict(theta, x, random.root(2), dropout=True) for _ in range(2)]
    assert torch.equal(*off) and torch.equal(*on) and not torch.equal(off[0], on[0])
    nll = -program.predict(theta, x, random.root(1), dropout=True)[torch.arange(6), y].mean()
    torch.testing.assert_close(parts["nll"], nll)  # the same draw and masks as training
