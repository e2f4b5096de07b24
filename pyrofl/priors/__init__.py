"""The priors, by the name they have in a configuration."""

from ..bayesian import Prior, Weight
from .flat import Flat
from .gaussian import Gaussian
from .hierarchical import Hierarchical
from .horseshoe import Horseshoe
from .laplace import Laplace
from .scale_mixture import ScaleMixture
from .student_t import StudentT

PRIORS: dict[str, type[Prior]] = {
    "flat": Flat,
    "gaussian": Gaussian,
    "laplace": Laplace,
    "student_t": StudentT,
    "scale_mixture": ScaleMixture,
    "hierarchical": Hierarchical,
    "horseshoe": Horseshoe,
}

__all__ = [
    "PRIORS",
    "Flat",
    "Gaussian",
    "Hierarchical",
    "Horseshoe",
    "Laplace",
    "Prior",
    "ScaleMixture",
    "StudentT",
    "Weight",
]
