"""The methods, by the name they have in a configuration."""

from .adamix import AdaMix
from .adaped import AdaPeD
from .alone import Alone, Pooled
from .ditto import Ditto
from .fedamp import FedAMP
from .fedavg import BayFL, FedAvg
from .fedbn import FedBN
from .fedfomo import FedFomo
from .fedmap import FedMAP
from .fedmask import FedMask
from .fedphp import FedPHP
from .fedprox import FedProx
from .mc_dropout import MCDropout
from .meta_bayfl import MetaBayFL
from .npeb import NPEB
from .per_fedavg import PerFedAvg
from .pfedme import PFedMe
from .vaneb import VANEB

METHODS: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "bayfl": BayFL,
    "mc_dropout": MCDropout,
    "meta_bayfl": MetaBayFL,
    "fedbn": FedBN,
    "per_fedavg": PerFedAvg,
    "ditto": Ditto,
    "pfedme": PFedMe,
    "fedamp": FedAMP,
    "fedfomo": FedFomo,
    "fedphp": FedPHP,
    "adaped": AdaPeD,
    "fedmask": FedMask,
    "fedmap": FedMAP,
    "npeb": NPEB,
    "vaneb": VANEB,
    "adamix": AdaMix,
    "alone": Alone,
    "pooled": Pooled,
}

__all__ = [
    "METHODS",
    "NPEB",
    "VANEB",
    "AdaMix",
    "AdaPeD",
    "Alone",
    "BayFL",
    "Ditto",
    "FedAMP",
    "FedAvg",
    "FedBN",
    "FedFomo",
    "FedMAP",
    "FedMask",
    "FedPHP",
    "FedProx",
    "MCDropout",
    "MetaBayFL",
    "PFedMe",
    "PerFedAvg",
    "Pooled",
]
