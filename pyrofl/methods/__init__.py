"""The methods, by the name they have in a configuration."""

from .adamix import AdaMix
from .alone import Alone, Pooled
from .ditto import Ditto
from .fedamp import FedAMP
from .fedavg import BayFL, FedAvg
from .fedbabu import FedBABU
from .fedbn import FedBN
from .fedfomo import FedFomo
from .fedmap import FedMAP
from .fedopt import FedAdam, FedAvgM, FedYogi
from .fedper import FedPer
from .fedphp import FedPHP
from .fedpa import FedPA
from .fedprox import FedProx
from .fedrep import FedRep
from .lg_fedavg import LGFedAvg
from .mc_dropout import MCDropout
from .meta_bayfl import MetaBayFL
from .npeb import NPEB
from .per_fedavg import PerFedAvg
from .pfedme import PFedMe
from .scaffold import SCAFFOLD
from .pfedbayes import PFedBayes
from .pvi import PVI
from .vaneb import VANEB

METHODS: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": SCAFFOLD,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "bayfl": BayFL,
    "mc_dropout": MCDropout,
    "meta_bayfl": MetaBayFL,
    "fedbn": FedBN,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "lg_fedavg": LGFedAvg,
    "per_fedavg": PerFedAvg,
    "ditto": Ditto,
    "pfedme": PFedMe,
    "fedamp": FedAMP,
    "fedfomo": FedFomo,
    "fedphp": FedPHP,
    "fedmap": FedMAP,
    "pvi": PVI,
    "fedpa": FedPA,
    "pfedbayes": PFedBayes,
    "npeb": NPEB,
    "vaneb": VANEB,
    "adamix": AdaMix,
    "alone": Alone,
    "pooled": Pooled,
}

__all__ = [
    "METHODS",
    "NPEB",
    "SCAFFOLD",
    "PVI",
    "VANEB",
    "AdaMix",
    "Alone",
    "BayFL",
    "Ditto",
    "FedAMP",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedFomo",
    "FedMAP",
    "FedPHP",
    "FedPer",
    "FedPA",
    "FedProx",
    "FedRep",
    "FedYogi",
    "LGFedAvg",
    "MCDropout",
    "MetaBayFL",
    "PFedMe",
    "PerFedAvg",
    "PFedBayes",
    "Pooled",
]
