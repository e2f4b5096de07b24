"""Figures with a row for each client: its classes, and what it chose in each round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, PowerNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from .style import PALE, PALETTE, figure, in_order, name_rows, plain, rows_height, tidy


def partition(counts: ArrayLike, *, names: Sequence[str], classes: Sequence[str]) -> Figure:
    """How many rows of each class (K) each client (C) holds, and how many rows in all. `counts` is (C, K).

    Colour is the square root of the count, so that small ones are seen; white means none.
    """
    n = np.asarray(counts)
    if n.shape != (len(names), len(classes)) or not n.size:
        raise ValueError(f"counts have shape {n.shape}: {len(names)} clients and {len(classes)} classes were named")
    C, K = n.shape
    cell = min(max(0.42, 2.4 / K), 6.4 / K)  # inches
    tall = rows_height(C)
    drawn = figure(2.2 + K * cell + 1.5, tall + 1.3)
    grid, bars = drawn.subplots(1, 2, sharey=True, width_ratios=[K * cell, 1.5])
    tidy(grid, grid=None), tidy(bars, grid="x")
    top = int(n.max())
    colours = ListedColormap(colormaps["Blues"](np.linspace(0.15, 1, 256)))
    colours.set_bad("white")
    image = grid.imshow(
        np.ma.masked_equal(n, 0),
        cmap=colours,
        norm=PowerNorm(0.5, 1, max(top, 2)),
        aspect="auto",
        interpolation="nearest",
    )
    if tall / C >= 0.2 and cell >= 0.34:
        for i, k in zip(*np.nonzero(n)):
            ink = "white" if n[i, k] > top / 3 else "black"
            grid.text(k, i, f"{n[i, k]:g}", ha="center", va="center", fontsize=7, color=ink)
    bars.barh(np.arange(C), n.sum(axis=1), height=0.8 if C <= 60 else 1.0, color=PALETTE[0])
    bars.set_xlabel("rows in all")
    bars.tick_params(axis="y", length=0, labelleft=False)
    bars.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    step = max(1, int(np.ceil(0.3 / cell)))
    long = max(len(str(c)) for c in classes) * 0.075 > cell * step
    grid.set_xticks(range(0, K, step), [plain(classes[k], width=18) for k in range(0, K, step)])
    if long:
        for tick in grid.get_xticklabels():
            tick.set(rotation=45, ha="right", rotation_mode="anchor")
    grid.set_xlabel("class")
    name_rows(grid, names)
    drawn.colorbar(image, ax=[grid, bars], label="rows (none: white)", shrink=min(1, 2.6 / tall), aspect=18)
    return drawn


def selected_optimizers(
    table: pd.DataFrame, *, choices: Sequence[str] | None = None, clients: Sequence[str] | None = None
) -> Figure:
    """What each client chose in each round, and above the share of clients behind each choice.

    `table` has the columns round, client, choice; at most one choice a client and round. Grey: the client did
    not take part. `choices` gives the order of the colours, light to dark; `clients` that of the rows.
    """
    missing = [c for c in ("round", "client", "choice") if c not in table]
    if missing or table.empty:
        raise ValueError(f"no {missing[0] if missing else 'row'} in the table; columns: {', '.join(table.columns)}")
    ordered = list(choices) if choices is not None else in_order(table["choice"])
    unknown = set(table["choice"]) - set(ordered)
    if unknown:
        raise ValueError(f"choice '{in_order(unknown)[0]}' is not among {', '.join(map(str, ordered))}")
    twice = table[table.duplicated(["round", "client"])]
    if len(twice):
        first = twice.iloc[0]
        raise ValueError(f"client '{first['client']}' chose twice in round {first['round']}")
    code = table.assign(code=table["choice"].map({c: i for i, c in enumerate(ordered)}))
    rounds = np.arange(table["round"].min(), table["round"].max() + 1)
    rows = list(clients) if clients is not None else in_order(table["client"])
    grid = code.pivot(index="client", columns="round", values="code").reindex(index=rows, columns=rounds)
    palette = [to_hex(colormaps["viridis_r"](v)) for v in np.linspace(0.06, 0.94, len(ordered))]

    tall = rows_height(len(rows))
    drawn = figure(7.2, tall + 2.0)
    shares, cells = drawn.subplots(2, 1, sharex=True, height_ratios=[0.8, tall])
    tidy(shares, grid=None), tidy(cells, grid=None)
    colours = ListedColormap(palette)
    colours.set_bad(PALE)
    span = (rounds[0] - 0.5, rounds[-1] + 0.5, len(rows) - 0.5, -0.5)
    cells.imshow(
        np.ma.masked_invalid(grid.to_numpy(dtype=float)),
        cmap=colours,
        vmin=-0.5,
        vmax=len(ordered) - 0.5,
        extent=span,
        aspect="auto",
        interpolation="nearest",
    )
    below = np.zeros(len(rounds))
    taking_part = np.maximum(grid.notna().sum(axis=0).to_numpy(), 1)
    for position, colour in enumerate(palette):
        share = (grid == position).sum(axis=0).to_numpy() / taking_part
        shares.bar(rounds, share, bottom=below, width=1.0, color=colour)
        below += share
    shares.set(ylim=(0, 1), yticks=[0, 0.5, 1], ylabel="share of\nclients")
    shares.tick_params(axis="x", length=0, labelbottom=False)
    cells.xaxis.set_major_locator(MaxNLocator(integer=True))
    cells.set_xlabel("round")
    name_rows(cells, rows)
    keys = [Patch(color=colour, label=plain(choice)) for colour, choice in zip(palette, ordered)]
    if grid.isna().to_numpy().any():
        keys.append(Patch(color=PALE, label="did not take part"))
    drawn.legend(handles=keys, loc="outside upper center", ncols=min(len(keys), 4), frameon=False, fontsize=8)
    return drawn
