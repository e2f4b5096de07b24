"""Office-Caltech-10, a client a domain; all methods have the same network with batch normalisation.

python -m experiments.fedmap.domains --out DIR [--scale smoke|cpu|full]
"""

from __future__ import annotations

from collections.abc import Sequence

from .common import ALONE, FEDAVG, FEDPROX, PUBLIC, Arm, options_of, overlap_of, report, scores, write

ARMS = {
    "alone": ALONE,
    "fedavg": FEDAVG,
    "fedprox": FEDPROX,
    "fedbn": Arm({"name": "fedbn", "weighting": "rows"}),
    "fedmap": Arm({"name": "fedmap"}),
    "fedmap_fixed": Arm(PUBLIC),
}
DOMAINS = ["amazon", "caltech10", "dslr", "webcam"]


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments)
    smoke = options.scale == "smoke"
    less = ["rounds=1", "method.epochs=1", "model.channels=2"] if smoke else []
    frames = {"domains": scores("domains.toml", ARMS, options.out, seeds=[1] if smoke else [1, 2, 3], less=less)}
    groups = {"domains": DOMAINS, "dslr and webcam": DOMAINS[2:]}
    pairs = [(name, "alone") for name in ARMS if name != "alone"]
    overlap = overlap_of("domains.toml")
    text = report(frames["domains"], groups, pairs, title="four domains", overlap=overlap)
    write("domains", options, frames, [text])


if __name__ == "__main__":
    main()
