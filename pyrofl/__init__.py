"""Probabilistic federated learning in Pyro: the public names, nothing else is promised."""

from . import _imports  # noqa: F401 (first)
from .assembly import Assembled, assemble
from .bayesian import Bayesian, Prior, Weight
from .config import Config, ConfigError, load
from .data import Batch, Client, Data, Dataset, Federation
from .federation import federate
from .method import Cohort, Reply
from .methods import METHODS, FedAvg
from .program import Program
from .run import Observer, Round, Run
from .tree import Tree
from .version import __version__

__all__ = [
    "METHODS",
    "Assembled",
    "Batch",
    "Bayesian",
    "Client",
    "Cohort",
    "Config",
    "ConfigError",
    "Data",
    "Dataset",
    "FedAvg",
    "Federation",
    "Observer",
    "Prior",
    "Program",
    "Reply",
    "Round",
    "Run",
    "Tree",
    "Weight",
    "__version__",
    "assemble",
    "federate",
    "load",
]
