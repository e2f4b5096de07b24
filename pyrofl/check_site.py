"""`pyrofl check-site`: before a site joins, what would leave it, and whether its data fit the federation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from .assembly import Assembled, assemble, site_config
from .config import Config, ConfigError
from .console import size
from .gate import Contract
from .method import Reply
from .random import fold, root
from .run import held
from .tree import Tree, nbytes


@dataclass(frozen=True)
class Rehearsal:
    """One local update of a site, from the first model, as the first round would ask for it."""

    assembled: Assembled
    client: int
    down: Tree
    reply: Reply
    wire: Tree
    seconds: float


def rehearse(config: Config, data: Path, site: str) -> Rehearsal:
    """Load the site's rows, check them against the schema and train once; nothing is sent or written."""
    if not data.exists():
        raise ConfigError(f"{data}: no such file or folder")
    assembled = assemble(site_config(config, data), at=site)
    client, method, key = assembled.names.index(site), assembled.method, root(config.seed)
    rows = held(assembled.federation.clients[client].train, assembled.device)
    if not rows.rows:
        raise ConfigError(f"{data} holds no training rows for site {site}")
    down = method.down(method.init(fold(key, "init")), client)
    began = time.perf_counter()
    reply = assembled.messages.local(down, method.join(down), rows, fold(key, "round", 1, "client", client))
    seconds = time.perf_counter() - began
    if reason := Contract.of(method.message(down)).reason(reply.up):
        raise ConfigError(f"the server would refuse what site {site} sends: {reason}")
    return Rehearsal(assembled, client, down, reply, assembled.messages.wire(down), seconds)


def say(found: Rehearsal, console: Console) -> None:
    """What leaves, what else leaves, and what stays."""
    c = found.assembled.federation.clients[found.client]
    for note in found.assembled.federation.notes:
        console.print(note, style="dim")
    table = RichTable("tensor", "shape", "type", "bytes", title=f"what {c.name} sends each round", title_justify="left")
    for name, v in found.wire.items():
        table.add_row(name, str(tuple(v.shape)), str(v.dtype).removeprefix("torch."), str(v.numel() * v.element_size()))
    console.print(table)
    privacy = found.assembled.messages.privacy
    console.print(f"{size(nbytes(found.wire))} up and {size(nbytes(found.down))} down each round")
    if privacy is None:
        console.print(f"also sent: the numbers of rows ({c.train.rows} for training, {c.test.rows} for scores)")
        console.print(f"also sent, one number each: {', '.join(sorted(found.reply.info)) or 'nothing'}; and the scores")
    else:
        rounds = found.assembled.config.rounds
        spent = found.assembled.messages.spent(rounds)
        sums = f" ({spent['epsilon_of_sums']:.3g} of the sums)" if "epsilon_of_sums" in spent else ""
        console.print(
            f"clipped and noised: epsilon {spent['epsilon']:.3g}{sums} at delta {privacy.delta:g} after {rounds} rounds"
            + ("; the scores are sent too, outside of this" if privacy.scores else "; nothing else is sent")
        )
    kept = ", ".join(found.reply.own) or "nothing between rounds"
    console.print(f"stays: all rows; and the method keeps {kept}")
    console.print(f"fits the federation's schema; one local update took {found.seconds:.1f} s")
