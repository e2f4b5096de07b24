"""`engine = "flower"`: a run's clients as Flower nodes in its own process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import Context, RecordDict

from ..config import Patience
from ..data import Federation
from ..messages import Messages
from ..methods.fedavg import FedAvg
from ..run import held
from ..store import RunDirectory
from .client import client_app
from .grid import LocalGrid
from .run import FlowerRun
from .site import Site
from .states import InContext, InFolder


def local_run(
    method: FedAvg,
    federation: Federation,
    *,
    directory: RunDirectory | None = None,
    device: torch.device | str = "cpu",
    patience: Patience | None = None,
    messages: Messages | None = None,
    **rest: Any,
) -> FlowerRun:
    """A run on a `LocalGrid`: every message is made, sent to a ClientApp, answered and checked as it is in earnest.

    The clients' own states lie in `sites/ID` of the run's directory, or in memory where there is none.
    """
    messages = messages or Messages.plain(method)
    folder = None if directory is None else directory.path / "sites"

    def open_site(config: str, context: Context) -> Site:
        i = int(context.node_config["partition-id"])
        client = federation.clients[i]
        states = InContext(context) if folder is None else InFolder(folder / str(i))
        return Site(messages, i, client.name, held(client.train, device), held(client.test, device), states)

    nodes = contexts(range(len(federation)))
    grid = LocalGrid(client_app(open_site), nodes)
    return FlowerRun(
        method,
        federation,
        grid=grid,
        config="",
        patience=patience or Patience(),
        messages=messages,
        directory=directory,
        device=device,
        **rest,
    )


def contexts(nodes: Iterable[int]) -> dict[int, Context]:
    """A fresh context for each node, as Flower's simulation gives them: node i holds partition i."""
    return {
        i: Context(run_id=0, node_id=i, node_config={"partition-id": i}, state=RecordDict(), run_config={})
        for i in nodes
    }
