"""The methods, by the name they have in a configuration."""

from .adamix import AdaMix
from .alone import Alone, Pooled
from .fedavg import BayFL, FedAvg
from .fedbn import FedBN
from .fedep import FedEP
from .fedmap import FedMAP
from .fedpa import FedPA
from .fedpop import FedPop
from .fedprox import FedProx
from .mc_dropout import MCDropout
from .meta_bayfl import MetaBayFL
from .npeb import NPEB
from .pfedbayes import PFedBayes
from .pfedbl import PFedBL
from .pvi import PVI
from .vaneb import VANEB

METHODS: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "bayfl": BayFL,
    "mc_dropout": MCDropout,
    "meta_bayfl": MetaBayFL,
    "fedbn": FedBN,
    "fedmap": FedMAP,
    "pvi": PVI,
    "fedep": FedEP,
    "fedpa": FedPA,
    "fedpop": FedPop,
    "pfedbayes": PFedBayes,
    "pfedbl": PFedBL,
    "npeb": NPEB,
    "vaneb": VANEB,
    "adamix": AdaMix,
    "alone": Alone,
    "pooled": Pooled,
}

__all__ = [
    "METHODS",
    "NPEB",
    "PVI",
    "VANEB",
    "AdaMix",
    "Alone",
    "BayFL",
    "FedAvg",
    "FedBN",
    "FedEP",
    "FedMAP",
    "FedPA",
    "FedPop",
    "FedProx",
    "MCDropout",
    "MetaBayFL",
    "PFedBL",
    "PFedBayes",
    "Pooled",
]
