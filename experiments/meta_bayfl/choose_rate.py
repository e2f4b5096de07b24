"""Choose the rate of a fixed-rate run on held-out training rows, so that test rows choose nothing.

    python -m experiments.meta_bayfl.choose_rate FILE adam:1e-2 adam:1e-3 adam:1e-4 [--set key=value ...]

Each candidate trains for all rounds on the first 80% of every client's training rows (their order is random) and is
scored on the last 20%, the part that Meta-BayFL holds out: the lowest mean negative log-likelihood of the clients' own
models wins.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from experiments.study_jobs import held_out, held_out_nll
from pyrofl import Config, load

__all__ = ["held_out", "score"]


def score(config: Config, optimizer: str) -> float:
    """`held_out_nll` with this optimizer."""
    return held_out_nll(replace(config, method={**config.method, "optimizer": optimizer}))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="a run of a method with one optimizer")
    parser.add_argument("candidates", nargs="+", metavar="OPTIMIZER", help="such as adam:1e-3")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the run")
    asked = parser.parse_args(arguments)
    try:
        config = load(asked.file, asked.set)
        found = {candidate: score(config, candidate) for candidate in asked.candidates}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for candidate, nll in found.items():
        print(f"{candidate:<12} held-out NLL {nll:.3f} nats")
    print(f"choose {min(found, key=found.__getitem__)}")


if __name__ == "__main__":
    main(sys.argv[1:])
