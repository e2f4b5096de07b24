"""Choose the rate of a fixed-rate run on held-out training rows, so that test rows choose nothing.

    python -m experiments.meta_bayfl.choose_rate FILE adam:1e-2 adam:1e-3 adam:1e-4 [key=value ...]

Each candidate trains for all rounds on the first 80% of every client's training rows (their order is random) and is
scored on the last 20%, the part that Meta-BayFL holds out: the lowest mean negative log-likelihood of the clients' own
models wins.
"""

from __future__ import annotations

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
    file, *rest = arguments
    config = load(Path(file), [a for a in rest if "=" in a])
    found = {candidate: score(config, candidate) for candidate in rest if "=" not in candidate}
    for candidate, nll in found.items():
        print(f"{candidate:<12} held-out NLL {nll:.3f} nats")
    print(f"choose {min(found, key=found.__getitem__)}")


if __name__ == "__main__":
    main(sys.argv[1:])
