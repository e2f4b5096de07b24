"""Figures, as `matplotlib.figure.Figure` objects: nothing is shown, and no setting of the process is touched.

Colours are safe for all common colour-vision deficiencies, axes carry units, and a figure of 200 clients fits
a page.
"""

from .calibration import reliability_diagram
from .curves import learning_curves
from .heatmaps import partition, selected_optimizers
from .intervals import caterpillar
from .style import save

__all__ = [
    "caterpillar",
    "learning_curves",
    "partition",
    "reliability_diagram",
    "save",
    "selected_optimizers",
]
