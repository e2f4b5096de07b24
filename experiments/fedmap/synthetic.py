"""The synthetic scenarios: skewed features, quantities and labels; then what their results hang on.

"shared features" leaves out the clients' own affine maps; "30 rounds" trains three times as long.

python -m experiments.fedmap.synthetic --out DIR [--scale smoke|cpu|full]
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .common import ARMS, options_of, report, scores, write

GROUPS = {
    "clients 1 to 5": [f"client {i}" for i in range(1, 6)],
    "clients 6 to 10": [f"client {i}" for i in range(6, 11)],
    "clients 8 to 10": [f"client {i}" for i in range(8, 11)],
}
AGAINST = [
    ("fedmap", "alone"),
    ("fedmap_fixed", "alone"),
    ("fedmap_single", "alone"),
    ("fedmap_fixed", "fedmap_single"),
    ("fedavg", "alone"),
    ("fedprox", "alone"),
    ("fedbn", "alone"),
]


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments)
    smoke = options.scale == "smoke"
    less = ["rounds=1", "method.epochs=1", "data.rows=40"] if smoke else []
    seeds = [1] if smoke else [1, 2, 3]
    together = {k: v for k, v in ARMS.items() if not v.single}
    own = {k: ARMS[k] for k in ("alone", "fedmap", "fedmap_fixed")}
    few = {k: ARMS[k] for k in ("alone", "fedavg", "fedmap", "fedmap_fixed")}
    single = {"fedmap_single": ARMS["fedmap_single"]}
    kinds = {
        "features": (together, ["data.scenario='features'"]),
        "quantity": (together, ["data.scenario='quantity'"]),
        "labels": (ARMS, ["data.scenario='labels'"]),
        "labels, shared features": (few | single, ["data.scenario='labels'", "data.affine=false"]),
        "quantity, shared features": (few, ["data.scenario='quantity'", "data.affine=false"]),
        "quantity, 30 rounds": (own, ["data.scenario='quantity'", "rounds=30"]),
    }
    frames: dict[str, pd.DataFrame] = {}
    texts = []
    for title, (arms, more) in kinds.items():
        parts = [
            scores("synthetic.toml", arms, options.out, seeds=[s], less=[*more, *less, f"data.seed={s}"]) for s in seeds
        ]
        frames[title] = pd.concat(parts, ignore_index=True)
        pairs = [(a, b) for a, b in AGAINST if a in arms and b in arms]
        texts.append(report(frames[title], GROUPS, pairs, title=title))
        write("synthetic", options, frames, texts)


if __name__ == "__main__":
    main()
