"""What is process-wide, and so none of the library's business."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyro
import torch


def process_state() -> dict[str, Any]:
    """Generators, parameter store and settings, as values that can be compared."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),  # type: ignore[index]  # noqa: NPY002
        "random": random.getstate(),
        "store": dict(pyro.get_param_store()),
        "pyro": {k: repr(v) for k, v in pyro.settings.get().items()},
        "validation": torch.distributions.Distribution._validate_args,
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
    }
