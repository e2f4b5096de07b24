"""The four heart-disease hospitals.

python -m experiments.fedmap.hospitals --out DIR [--scale smoke|cpu|full]
"""

from __future__ import annotations

from collections.abc import Sequence

from .common import ARMS, Arm, options_of, overlap_of, report, scores, write

BAYES = {"fedmap_bayes": Arm({"name": "fedmap"}, {"guide": {"name": "normal"}})}
HOSPITALS = ["cleveland", "hungarian", "switzerland", "va"]
AGAINST = [(a, "alone") for a in ("fedavg", "fedprox", "fedbn", "fedmap", "fedmap_fixed", "fedmap_single", *BAYES)]


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments)
    smoke = options.scale == "smoke"
    less = ["rounds=1", "method.epochs=1", "evaluate.final_draws=2"] if smoke else []
    seeds = [1] if smoke else list(range(1, 11))
    frames = {"hospitals": scores("hospitals.toml", {**ARMS, **BAYES}, options.out, seeds=seeds, less=less)}
    overlap = overlap_of("hospitals.toml")
    text = report(frames["hospitals"], {"hospitals": HOSPITALS}, AGAINST, title="four hospitals", overlap=overlap)
    write("hospitals", options, frames, [text])


if __name__ == "__main__":
    main()
