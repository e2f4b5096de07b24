"""The version, read from the installed package."""

from importlib.metadata import version

__version__ = version("pyrofl")
