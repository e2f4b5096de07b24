"""The methods, by the name they have in a configuration."""

from .adamix import AdaMix
from .alone import Alone, Pooled
from .beta_predbayes import BetaPredBayes
from .fedavg import BayFL, FedAvg
from .fedbe import FedBE
from .fedbn import FedBN
from .fedmap import FedMAP
from .fedprox import FedProx
from .mc_dropout import MCDropout
from .meta_bayfl import MetaBayFL
from .npeb import NPEB
from .pfnm import PFNM
from .vaneb import VANEB
from .vaneb_ft import VANEBFT
from .vaneb_head import VANEBHead

METHODS: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "bayfl": BayFL,
    "mc_dropout": MCDropout,
    "meta_bayfl": MetaBayFL,
    "beta_predbayes": BetaPredBayes,
    "fedbe": FedBE,
    "fedbn": FedBN,
    "fedmap": FedMAP,
    "pfnm": PFNM,
    "npeb": NPEB,
    "vaneb": VANEB,
    "vaneb_head": VANEBHead,
    "vaneb_ft": VANEBFT,
    "adamix": AdaMix,
    "alone": Alone,
    "pooled": Pooled,
}

__all__ = [
    "METHODS",
    "NPEB",
    "PFNM",
    "VANEB",
    "VANEBFT",
    "AdaMix",
    "Alone",
    "BayFL",
    "BetaPredBayes",
    "FedAvg",
    "FedBE",
    "FedBN",
    "FedMAP",
    "FedProx",
    "MCDropout",
    "MetaBayFL",
    "Pooled",
    "VANEBHead",
]
