"""Which site stands behind a Flower node: a partition of a simulation, or a hospital with a file of its own."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from ..assembly import Assembled, assemble, site_config
from ..config import ConfigError, config_of
from ..run import held
from .site import Site
from .states import InContext, InFolder, States


def open_site(config: str, context: Context) -> Site:
    """The site of a node.

    A node of a simulation has `partition-id`. A SuperNode says with `--node-config` its `site`, `data` (its own file)
    and `state` (a folder for what the method keeps at the client).
    """
    node = context.node_config
    if "site" in node:
        name, data = str(node["site"]), str(_need(node, "data"))
        try:
            assembled = _deployed(config, name, data)
        except Exception:
            logging.getLogger(__name__).exception("the data of site %s", name)  # here, since it may speak of rows
            raise ConfigError(
                f"site {name} could not open its data: its own log says why, and so does pyrofl check-site"
            ) from None
        client = assembled.names.index(name)
    elif "partition-id" in node:
        assembled, client = _simulated(config), int(node["partition-id"])
        if client >= len(assembled.names):
            raise ConfigError(f"node {client} has no client: there are {len(assembled.names)}; start as many nodes")
    else:
        raise ConfigError('give this SuperNode --node-config \'site="NAME" data="FILE" state="FOLDER"\'')
    folder = node.get("state") or _simulated_folder(context, client)
    states: States = InFolder(Path(str(folder))) if folder else InContext(context)
    held_here = assembled.federation.clients[client]
    return Site(
        assembled.messages,
        client,
        held_here.name,
        held(held_here.train, assembled.device),
        held(held_here.test, assembled.device),
        states,
        secretive="site" in node,
    )


def _simulated_folder(context: Context, client: int) -> str:
    """In a simulation states lie beside the run, so that it can be resumed."""
    out = context.run_config.get("out")
    return str(Path(str(out)) / "sites" / str(client)) if out and "partition-id" in context.node_config else ""


@lru_cache(maxsize=1)  # a process of a simulation serves many clients
def _simulated(config: str) -> Assembled:
    return assemble(config_of(tomllib.loads(config), "the server's configuration"))


@lru_cache(maxsize=1)
def _deployed(config: str, site: str, data: str) -> Assembled:
    table = config_of(tomllib.loads(config), "the server's configuration")
    return assemble(site_config(table, data), at=site)


def _need(node: Mapping[str, Any], key: str) -> Any:
    if not node.get(key):
        raise ConfigError(f"give this SuperNode --node-config with {key}: it names the site's own file")
    return node[key]
