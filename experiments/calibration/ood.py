"""Does predictive entropy tell foreign rows from a client's own test rows?

    python -m experiments.calibration.ood FILE [FOREIGN] [key=value ...]

Trains the run of FILE in memory and prints, for each kind of entropy, the area under the ROC curve of "foreign" against
"own test row" with the client's own model: mean, spread and lowest over clients; 0.5 is chance. FOREIGN is

    noise      uniform pixels (the default)
    permuted   the client's test rows with their pixels in one random order
    NAME       rows of another data set with inputs of the same shape, for example fashion_mnist for mnist

Test rows choose nothing here either: no threshold and no temperature is fitted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from pyrofl import Run, assemble, load, metrics
from pyrofl.data import Data
from pyrofl.datasets import DATASETS
from pyrofl.evaluate import predict
from pyrofl.random import fold, generator

MOST = 1000  # foreign rows


def foreign(name: str, like: Data, run: Run) -> Data:
    """Foreign rows for a client with test rows `like`; their labels are 0 and mean nothing."""
    rng = generator(fold(run.key, "foreign"))
    rows = like.x[: like.rows]
    if name == "noise":
        low, high = float(rows.min()), float(rows.max())
        x = torch.from_numpy(rng.uniform(low, high, (min(len(rows), MOST), *rows.shape[1:])))
    elif name == "permuted":
        flat = rows.flatten(1)
        x = flat[:, torch.from_numpy(rng.permutation(flat.shape[1]))].reshape(rows.shape)
    else:
        x = DATASETS[name]().x
        x = x[torch.from_numpy(rng.permutation(len(x))[:MOST])]
        if x.shape[1:] != rows.shape[1:]:
            raise ValueError(f"{name} has inputs {tuple(x.shape[1:])}, this run {tuple(rows.shape[1:])}")
    return Data.of(x.to(rows), torch.zeros(len(x), dtype=like.y.dtype, device=like.y.device))


def areas(run: Run, name: str, *, draws: int = 50) -> dict[str, dict[str, float | None]]:
    """Kind of entropy -> client -> AUROC; a point estimate has the total alone."""
    kinds = metrics.Entropy._fields if run.method.stochastic else ("total",)
    found: dict[str, dict[str, float | None]] = {k: {} for k in kinds}
    for i, theta in run.personal_models():
        test = run.to_device(run.federation.clients[i].test)
        if not test.rows:
            continue
        both = (test, foreign(name, test, run))
        p = [predict(run.method, theta, data, fold(run.key, "ood", i), draws=draws)["p"] for data in both]
        inside, outside = (metrics.entropy(metrics.two_classes(v) if v.ndim == 2 else v) for v in p)
        for kind in found:
            found[kind][run.names[i]] = metrics.ood_auroc(getattr(inside, kind), getattr(outside, kind)).value
    return found


def main(arguments: list[str]) -> None:
    file, *rest = arguments
    (name,) = [a for a in rest if "=" not in a] or ["noise"]
    run = assemble(load(Path(file), [a for a in rest if "=" in a])).run()
    for _ in run:
        pass
    print(f"{Path(file).stem}, foreign rows: {name}, {len(run.names)} clients")
    for kind, clients in areas(run, name).items():
        s = metrics.summary("auroc", clients)
        print(
            f"{kind:<10} AUROC {s.mean_over_clients:.3f} +- {s.spread_over_clients:.3f}, "
            f"lowest {s.worst:.3f} ({s.worst_client})"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
