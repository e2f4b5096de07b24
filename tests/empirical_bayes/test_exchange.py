"""The federated form: atoms go down, covariances at the atoms come up."""

import numpy as np
import pytest

from pyrofl.empirical_bayes import QuadraticVariance, alternating, exchange, npmle

FAMILY = QuadraticVariance(0.2, 0.0, 0.4)


def clients(count=60, seed=0):
    rng = np.random.default_rng(seed)
    theta, n = rng.choice([-1.0, 0.0, 2.0], (count, 2)), rng.integers(3, 12, count)
    return theta + np.sqrt(FAMILY.variance(theta) / n[:, None]) * rng.normal(size=(count, 2)), n


def test_messages_alone_run_the_alternation():
    z, n = clients()
    kernel = FAMILY.kernel(z, n)
    atoms = np.unique(z, axis=0)
    best = -np.inf
    for _ in range(4):
        variance = np.stack([FAMILY.covariance(atoms) / k for k in n])  # what each client answers
        step = exchange(z, atoms, variance)
        best = max(best, step.log_likelihood)
        atoms = step.atoms
    assert step.gap_atoms <= 1e-8
    assert best == pytest.approx(alternating(kernel, max_steps=3, tolerance=-1.0).log_likelihood, abs=1e-9)


def test_full_and_diagonal_answers_agree():
    z, n = clients(20)
    atoms = z[:8]
    flat = np.stack([FAMILY.covariance(atoms) / k for k in n])
    a, b = exchange(z, atoms, flat), exchange(z, atoms, flat[..., None] * np.eye(2))
    np.testing.assert_allclose(a.atoms, b.atoms, atol=1e-9)
    np.testing.assert_allclose(a.posterior_mean, b.posterior_mean, atol=1e-9)


def test_climbing_through_the_covariance_is_never_below_the_alternation():
    for seed in range(3):
        z, n = clients(seed=seed)
        kernel = FAMILY.kernel(z, n)
        climbed, alternated = npmle(kernel), alternating(kernel)
        assert climbed.log_likelihood >= alternated.log_likelihood - climbed.gap


def test_with_fixed_covariances_the_alternation_never_falls_and_one_site_stays():
    z, _ = clients(40)
    V = np.full((40, 2), 0.3)
    values = [alternating(z, V, max_steps=s, tolerance=-1.0).log_likelihood for s in range(5)]
    assert np.diff(values).min() >= -1e-12
    assert alternating(FAMILY.kernel(np.array([[2.0, 1.0]]), np.ones(1))).atoms.tolist() == [[2.0, 1.0]]


def test_wrong_shapes_are_told():
    with pytest.raises(ValueError, match=r"must be \(3, 2, 1\) or \(3, 2, 1, 1\)"):
        exchange(np.zeros((3, 1)), np.zeros((2, 1)), np.ones((3, 1)))
