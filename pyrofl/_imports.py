"""Imports without a trace: scikit-learn's progress bars draw from Python's generator when they are loaded."""

import random

_state = random.getstate()
import sklearn.metrics  # noqa: E402, F401

random.setstate(_state)
