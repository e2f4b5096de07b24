"""Figures, as `matplotlib.figure.Figure` objects: nothing is shown, and no setting of the process is touched.

Colours are safe for all common colour-vision deficiencies, axes carry units, and a figure of 200 clients fits
a page.
"""

from .calibration import reliability_diagram
from .curves import learning_curves
from .forecasts import coverage_curve, isotonic_curve, pit_histogram, selective_curve
from .heatmaps import partition, selected_optimizers
from .intervals import caterpillar
from .posteriors import disagreement, layers
from .style import save
from .svg import svg

__all__ = [
    "caterpillar",
    "coverage_curve",
    "disagreement",
    "isotonic_curve",
    "layers",
    "learning_curves",
    "partition",
    "pit_histogram",
    "reliability_diagram",
    "save",
    "selected_optimizers",
    "selective_curve",
    "svg",
]
