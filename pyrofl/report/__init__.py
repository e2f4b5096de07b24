"""One page of HTML about runs: the answer first, then the evidence. It opens from the disk and loads nothing."""

from __future__ import annotations

from .html import page, write_report

__all__ = ["page", "write_report"]
