"""Likelihoods of sites: values against scipy, gradients against differences, fits against closed forms."""

import numpy as np
import pytest
from scipy.stats import bernoulli, binom, multinomial, multivariate_normal, poisson

from pyrofl.empirical_bayes.counts import Categories, Counts
from pyrofl.empirical_bayes.families import GaussianRegression, Logistic, Multinomial, Poisson, QuadraticVariance
from pyrofl.empirical_bayes.kernels import Fixed, FixedFull
from pyrofl.empirical_bayes.multinomial import MultinomialRegression

K, ALL = 6, slice(0, 6)
RNG = np.random.default_rng(0)
Z, N = RNG.normal(size=(K, 3)), RNG.integers(3, 9, K)
ROWS = RNG.normal(size=(K, 7, 3))
ROWS[2, 4:] = 0.0  # padding
EVENTS = np.random.default_rng(9).poisson(1.0, (K, 7)) * (ROWS != 0).any(axis=2)
ROOT = RNG.normal(size=(K, 3, 3))
FULL = ROOT @ np.swapaxes(ROOT, 1, 2) + np.eye(3)
KERNELS = {
    "fixed": Fixed(Z, Z**2 + 0.3),
    "fixed_full": FixedFull(Z, FULL),
    "quadratic": QuadraticVariance(0.3, 0.1, 0.2).kernel(Z, N),
    "multinomial": Multinomial(4).kernel(Z, N),
    "logistic": Logistic(ridge=0.1).kernel(Z, ROWS),
    "logistic_diagonal": Logistic(ridge=0.1, diagonal=True).kernel(Z, ROWS),
    "poisson": Poisson(ridge=0.1).kernel(Z, ROWS),
    "multinomial_rows": MultinomialRegression(Z[:, :2], ROWS[:, :, :1], 3, 0.1),
    "binomial": Counts(np.array([0.0, 3, 5, 2, 1, 4]), np.full(6, 5.0), binomial=True),
    "counts": Counts(np.array([0.0, 3, 5, 2, 1, 4]), np.arange(1.0, 7), binomial=False),
    "logistic_outcomes": Logistic().likelihood(ROWS, EVENTS > 0),
    "poisson_outcomes": Poisson().likelihood(ROWS, EVENTS),
    "categories": Categories(RNG.integers(0, 5, (K, 4)).astype(float) + np.eye(K, 4)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_gradient_runs_through_mean_and_covariance(name):
    kernel = KERNELS[name]
    theta = 0.5 * np.random.default_rng(1).normal(size=(4, kernel.dimension))
    q = np.random.default_rng(2).random((K, 4))
    gradient = kernel.evaluate(theta, ALL)[1](q).gradient
    step = 1e-6
    for i in range(kernel.dimension):
        e = np.zeros(kernel.dimension)
        e[i] = step
        above, below = (kernel.evaluate(theta + s * e, ALL)[0] for s in (1, -1))
        np.testing.assert_allclose(gradient[:, i], (q * (above - below)).sum(axis=0) / (2 * step), rtol=1e-5, atol=1e-6)


def covariance_at(name, theta, k):
    """V_k(theta) from the families' own covariance functions or by hand."""
    rows = ROWS[k][(ROWS[k] != 0).any(axis=1)]
    return {
        "fixed": lambda: np.diag(Z[k] ** 2 + 0.3),
        "fixed_full": lambda: FULL[k],
        "quadratic": lambda: np.diag((0.3 + 0.1 * theta + 0.2 * theta**2) / N[k]),
        "multinomial": lambda: Multinomial(4).covariance(theta[None])[0] / N[k],
        "logistic": lambda: Logistic(ridge=0.1).covariance(theta[None], rows)[0] / len(rows),
        "poisson": lambda: Poisson(ridge=0.1).covariance(theta[None], rows)[0] / len(rows),
        "logistic_diagonal": lambda: (
            np.diag(Logistic(ridge=0.1, diagonal=True).covariance(theta[None], rows)[0]) / len(rows)
        ),
    }[name]()


@pytest.mark.parametrize(
    "name", ["fixed", "fixed_full", "quadratic", "multinomial", "logistic", "poisson", "logistic_diagonal"]
)
def test_the_kernel_is_the_normal_density(name):
    theta = 0.5 * np.random.default_rng(3).normal(size=(4, 3))
    log, tangent = KERNELS[name].evaluate(theta, ALL)
    q = np.random.default_rng(4).random((K, 4))
    sums = tangent(q)
    for j in range(4):
        V = np.array([covariance_at(name, theta[j], k) for k in range(K)])
        wanted = [multivariate_normal.logpdf(Z[k], theta[j], V[k]) for k in range(K)]
        np.testing.assert_allclose(log[:, j], wanted, rtol=1e-9)
        P = np.linalg.inv(V)
        np.testing.assert_allclose(sums.precision[j], np.einsum("k,kab->ab", q[:, j], P), rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(
            sums.ridge[j], np.einsum("k,kab,kb->a", q[:, j], P, Z - theta[j]), rtol=1e-8, atol=1e-9
        )


@pytest.mark.parametrize("name", KERNELS)
def test_some_sites_are_the_rows_of_all(name):
    kernel, index = KERNELS[name], np.array([4, 1])
    theta = np.full((kernel.dimension, 2), [0.1, 0.4]).T
    np.testing.assert_allclose(
        kernel.take(index).evaluate(theta, slice(0, 2))[0], kernel.evaluate(theta, ALL)[0][index]
    )
    np.testing.assert_allclose(kernel.evaluate(theta, index)[0], kernel.evaluate(theta, ALL)[0][index])


def test_counts_are_the_exact_probabilities():
    theta = np.array([[-1.0], [0.3]])
    r, n = np.array([0, 3, 5, 2, 1, 4]), np.full(6, 5)
    p = 1 / (1 + np.exp(-theta[:, 0]))
    np.testing.assert_allclose(KERNELS["binomial"].evaluate(theta, ALL)[0], binom.logpmf(r[:, None], n[:, None], p))
    size = np.arange(1.0, 7)
    np.testing.assert_allclose(
        KERNELS["counts"].evaluate(theta, ALL)[0], poisson.logpmf(r[:, None], size[:, None] * np.exp(theta[:, 0]))
    )
    c, t = KERNELS["categories"].counts, np.array([0.2, -0.3, 0.8])
    p = np.exp([0, *t]) / np.exp([0, *t]).sum()
    np.testing.assert_allclose(
        KERNELS["categories"].evaluate(t[None], ALL)[0][:, 0], multinomial.logpmf(c, c.sum(axis=1), p)
    )


def test_outcomes_of_a_regression_are_the_exact_probabilities():
    theta = np.array([[0.2, -0.3, 0.8], [-1.0, 0.4, 0.1]])
    for k in range(K):
        x, y = ROWS[k], EVENTS[k]
        x, y = x[: 4 if k == 2 else 7], y[: 4 if k == 2 else 7]  # without the padding
        eta = x @ theta.T  # (N, M)
        chance = bernoulli.logpmf((y > 0)[:, None], 1 / (1 + np.exp(-eta))).sum(axis=0)
        np.testing.assert_allclose(KERNELS["logistic_outcomes"].evaluate(theta, ALL)[0][k], chance)
        np.testing.assert_allclose(
            KERNELS["poisson_outcomes"].evaluate(theta, ALL)[0][k],
            poisson.logpmf(y[:, None], np.exp(eta)).sum(axis=0),
        )
    for name, family in (("logistic", Logistic()), ("poisson", Poisson())):
        kernel = KERNELS[f"{name}_outcomes"]
        V = [family.covariance(kernel.z[k][None], ROWS[k])[0] / 7 for k in range(K)]
        np.testing.assert_allclose(kernel.plugin(), V, rtol=1e-9)
        precision = kernel.evaluate(kernel.z, ALL)[1](np.eye(K)).precision
        np.testing.assert_allclose(np.linalg.inv(precision), V, rtol=1e-9)


def test_an_intercept_alone_has_the_likelihood_of_its_counts():
    theta, ones = np.array([[-1.0], [0.3]]), np.ones((K, 7, 1))
    y = np.array([EVENTS.sum(axis=1), np.full(K, 7.0)])
    counts = Counts(*y, binomial=False).evaluate(theta, ALL)[0]
    rows = Poisson().likelihood(ones, EVENTS).evaluate(theta, ALL)[0]
    np.testing.assert_allclose(np.diff(rows), np.diff(counts))  # equal up to a constant of each site
    two = np.column_stack([7 - (EVENTS > 0).sum(axis=1), (EVENTS > 0).sum(axis=1)])
    categories = Multinomial(2).likelihood(two).evaluate(theta, ALL)[0]
    np.testing.assert_allclose(
        np.diff(Logistic().likelihood(ones, EVENTS > 0).evaluate(theta, ALL)[0]), np.diff(categories)
    )
    with pytest.raises(ValueError, match=r"whole numbers \(K, 2\)"):
        Multinomial(2).likelihood(two + 0.5)


def test_an_intercept_alone_is_a_regression_on_ones():
    rows = (np.arange(9)[None] < N[:, None]).astype(float)[:, :, None]
    theta = 0.5 * np.random.default_rng(5).normal(size=(3, 3))
    shared, regression = Multinomial(4).kernel(Z, N), MultinomialRegression(Z, rows, 4, 0.0)
    np.testing.assert_allclose(shared.evaluate(theta, ALL)[0], regression.evaluate(theta, ALL)[0], rtol=1e-10)
    two = MultinomialRegression(Z, ROWS, 2, 0.1)
    np.testing.assert_allclose(
        two.evaluate(theta, ALL)[0], Logistic(ridge=0.1).kernel(Z, ROWS).evaluate(theta, ALL)[0], rtol=1e-10
    )


def test_separation_and_zero_counts_have_finite_estimates():
    ones = np.ones((4, 1))
    assert Logistic().fit(ones, np.ones(4)).z[0] == pytest.approx(np.log(4.5 / 0.5), abs=1e-8)
    assert Poisson().fit(ones, np.zeros(4)).z[0] == pytest.approx(np.log(0.5 / 4), abs=1e-8)
    z, n = Multinomial(3).fit(None, np.array([1, 1, 2]))
    np.testing.assert_allclose(z, np.log([2.5 / 0.5, 1.5 / 0.5]))
    assert n == 3


def test_a_fit_solves_the_modified_score_equation():
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(30, 2)), rng.integers(0, 2, 30)
    z = Logistic().fit(x, y).z
    p = 1 / (1 + np.exp(-x @ z))
    w = p * (1 - p)
    F = (x * w[:, None]).T @ x
    h = w * np.einsum("na,ab,nb->n", x, np.linalg.inv(F), x)
    np.testing.assert_allclose(x.T @ (y - p + h * (0.5 - p)), 0, atol=1e-8)


def test_many_clients_are_fitted_as_one_by_one():
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(3, 12, 2))
    rows[1, 8:] = 0.0
    y = rng.poisson(2, (3, 12)) * (rows != 0).any(axis=2)
    together = Poisson().fit_all(rows, y)
    np.testing.assert_allclose(together[1], Poisson().fit(rows[1, :8], y[1, :8]).z, atol=1e-8)


def test_a_multinomial_regression_zeroes_its_score():
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=(40, 2)), rng.integers(0, 3, 40)
    theta = Multinomial(3, ridge=0.5).fit(x, y).z.reshape(2, 2)
    eta = np.column_stack([np.zeros(40), x @ theta.T])
    p = np.exp(eta) / np.exp(eta).sum(axis=1, keepdims=True)
    np.testing.assert_allclose((np.eye(3)[y] - p)[:, 1:].T @ x, 0.5 * theta, atol=1e-8)


def test_linear_regression_has_a_constant_covariance():
    x, y = np.array([[1.0, 0], [1, 1], [1, 2]]), np.array([1.0, 2, 3])
    family = GaussianRegression(noise=2.0)
    z, n = family.fit(x, y)
    np.testing.assert_allclose(z, [1.0, 1.0])
    np.testing.assert_allclose(family.covariance(np.zeros((2, 2)), x)[0], 3 * 4 * np.linalg.inv(x.T @ x))
    np.testing.assert_allclose(family.kernel(z[None], [x]).plugin()[0], 4 * np.linalg.inv(x.T @ x))
    assert n == 3


def test_the_sandwich_equals_the_inverse_information_when_the_residuals_say_so():
    x = np.ones((4, 1))
    y = np.array([1.0, 1, 0, 0])  # residuals of one half each at theta = 0: sum r^2 = 1 = information
    sandwich = Logistic(sandwich=True)
    np.testing.assert_allclose(sandwich.covariance(np.zeros((1, 1)), x, y), Logistic().covariance(np.zeros((1, 1)), x))
    np.testing.assert_allclose(sandwich.kernel(np.zeros((1, 1)), x[None], y[None]).plugin(), [[[1.0]]])


def test_a_variance_that_may_turn_negative_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        QuadraticVariance(1.0, 5.0, 0.1)
