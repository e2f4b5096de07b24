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

from pyrofl import Client, Config, Federation, assemble, load

HOLDOUT = 0.2  # as in Meta-BayFL


def held_out(federation: Federation) -> Federation:
    """The federation with test rows replaced by rows held out of training."""
    parts = [c.train.split(HOLDOUT) for c in federation.clients]
    clients = tuple(Client(c.name, train, held) for c, (train, held) in zip(federation.clients, parts))
    return replace(federation, clients=clients, common=None)


def score(config: Config, optimizer: str) -> float:
    """Mean over clients of the held-out negative log-likelihood after the last round, in nats per row."""
    config = replace(config, method={**config.method, "optimizer": optimizer}, evaluate={"every": config.rounds})
    assembled = assemble(config)
    run = replace(assembled, federation=held_out(assembled.federation)).run()
    scores = [now.scores for now in run][-1]
    of_clients = scores.get("personal", scores.get("global", {}))
    values = [s["nll"] for name, s in of_clients.items() if not name.startswith("(")]
    return sum(v for v in values if v is not None) / len(values)


def main(arguments: list[str]) -> None:
    file, *rest = arguments
    config = load(Path(file), [a for a in rest if "=" in a])
    found = {candidate: score(config, candidate) for candidate in rest if "=" not in candidate}
    for candidate, nll in found.items():
        print(f"{candidate:<12} held-out NLL {nll:.3f} nats")
    print(f"choose {min(found, key=found.__getitem__)}")


if __name__ == "__main__":
    main(sys.argv[1:])
