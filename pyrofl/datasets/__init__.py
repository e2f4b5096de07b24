"""Loaders of data sets: `DATASETS[name](**options) -> Dataset`; the keywords are configuration keys."""

from __future__ import annotations

from collections.abc import Callable

from ..data import Dataset
from .cifar import cifar10, cifar100
from .digits import digits
from .files import Progress, data_root
from .heart import heart
from .imagefolder import imagefolder
from .mnist import fashion_mnist, mnist
from .synthetic import synthetic
from .tables import csv
from .trees import officecaltech10, tinyimagenet

DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "synthetic": synthetic,
    "heart": heart,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tinyimagenet": tinyimagenet,
    "officecaltech10": officecaltech10,
    "imagefolder": imagefolder,
    "csv": csv,
}

__all__ = ["DATASETS", "Progress", "data_root"]
