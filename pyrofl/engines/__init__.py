"""Engines run one hook for many clients; a method never learns which one."""

from .base import Engine, Failure, Job
from .choose import ENGINES, choose
from .sequential import Sequential
from .vectorised import Vectorised

__all__ = ["ENGINES", "Engine", "Failure", "Job", "Sequential", "Vectorised", "choose"]
