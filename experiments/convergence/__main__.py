"""Gaps of strongly convex federated problems beside the bounds of two papers.

python -m experiments.convergence [--scale smoke|cpu|full] [--out DIR]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

from .measure import SCALES, curves
from .problems import make
from .report import write

console = Console()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=tuple(SCALES), default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    problems = {kind: make(kind, seed=1) for kind in ("logistic", "linear")}
    began, frames = time.process_time(), []
    for name, problem in problems.items():
        with console.status(name):
            frames.append(curves(problem, SCALES[options.scale]).assign(problem=name))
    command = f"python -m experiments.convergence --scale {options.scale}"
    seconds = time.process_time() - began
    text = write(pd.concat(frames, ignore_index=True), problems, options.out, command=command, seconds=seconds)
    console.print(Markdown(text))
    console.print(f"wrote convergence.csv, convergence.png and convergence.md to {options.out}")


if __name__ == "__main__":
    main()
