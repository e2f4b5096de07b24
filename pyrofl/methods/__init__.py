"""The methods, by the name they have in a configuration."""

from .adamix import AdaMix
from .adaped import AdaPeD
from .alone import Alone, Pooled
from .bayfl import BayFL
from .beta_predbayes import BetaPredBayes
from .ditto import Ditto
from .fedamp import FedAMP
from .fedavg import FedAvg
from .fedbabu import FedBABU
from .fedbe import FedBE
from .fedbn import FedBN
from .fedep import FedEP
from .fedfomo import FedFomo
from .fedmap import FedMAP
from .fedmask import FedMask
from .fedopt import FedAdam, FedAvgM, FedYogi
from .fedpa import FedPA
from .fedper import FedPer
from .fedphp import FedPHP
from .fedpop import FedPop
from .fedprox import FedProx
from .fedrep import FedRep
from .lg_fedavg import LGFedAvg
from .mc_dropout import MCDropout
from .meta_bayfl import MetaBayFL
from .meta_bayfl_averaged import MetaBayFLAveraged
from .npeb import NPEB
from .per_fedavg import PerFedAvg
from .pfedbayes import PFedBayes
from .pfedbl import PFedBL
from .pfedme import PFedMe
from .pfnm import PFNM
from .pvi import PVI
from .scaffold import SCAFFOLD
from .vaneb import VANEB
from .vaneb_ft import VANEBFT
from .vaneb_head import VANEBHead

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
    "meta_bayfl_averaged": MetaBayFLAveraged,
    "beta_predbayes": BetaPredBayes,
    "fedbe": FedBE,
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
    "adaped": AdaPeD,
    "fedmask": FedMask,
    "fedmap": FedMAP,
    "pvi": PVI,
    "fedep": FedEP,
    "fedpa": FedPA,
    "fedpop": FedPop,
    "pfedbayes": PFedBayes,
    "pfedbl": PFedBL,
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
    "PVI",
    "SCAFFOLD",
    "VANEB",
    "VANEBFT",
    "AdaMix",
    "AdaPeD",
    "Alone",
    "BayFL",
    "BetaPredBayes",
    "Ditto",
    "FedAMP",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBE",
    "FedBN",
    "FedEP",
    "FedFomo",
    "FedMAP",
    "FedMask",
    "FedPA",
    "FedPHP",
    "FedPer",
    "FedPop",
    "FedProx",
    "FedRep",
    "FedYogi",
    "LGFedAvg",
    "MCDropout",
    "MetaBayFL",
    "MetaBayFLAveraged",
    "PFedBL",
    "PFedBayes",
    "PFedMe",
    "PerFedAvg",
    "Pooled",
    "VANEBHead",
]
