"""Heart disease at four hospitals: Cleveland, Hungary, Switzerland and Long Beach (VA)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch

from ..data import Dataset
from ..suggest import choose
from .files import data_root

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
]
_LEVELS = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}  # coded as 0/1 columns, the first level is the reference


def heart(
    *,
    cholesterol: Literal["keep", "drop_rows", "drop_column"] = "keep",
    path: str | Path | None = None,
    root: str | Path | None = None,
) -> Dataset:
    """Presence of heart disease from 13 features, with the four hospitals as natural clients.

    Of the 14 columns of processed.HOSPITAL.data, slope, ca and thal are left out (mostly missing outside
    Cleveland), cp and restecg become 3 and 2 columns of 0/1, and num > 0 is disease. Rows with a missing
    value ("?") are dropped: 303, 261, 46 and 130 stay. A cholesterol of 0 means that it was not measured (all
    Swiss rows): such rows are kept as they are, dropped, or the column is left out (12 features). Features
    are in the files' units: standardise them.

    The files are looked for in `path`, else in ROOT/heart, ROOT/heart_disease and ROOT/sites/heart_disease. Where
    `path` is one of the four files, the rows are that hospital's alone.

    Reference: Detrano et al., 1989; features as in du Terrail et al., 2022 (FLamby).
    """
    choose(cholesterol, ("keep", "drop_rows", "drop_column"), "cholesterol")
    tables, notes = [], []
    for k, (name, file) in _files(path, root).items():
        table = _read(file)
        whole = table.dropna()
        unmeasured = int((whole["chol"] == 0).sum())
        notes.append(f"heart, {name}: {len(whole)} rows, {len(table) - len(whole)} with missing values dropped")
        if unmeasured and cholesterol != "drop_column":
            done = "dropped" if cholesterol == "drop_rows" else "kept as 0"
            notes.append(f"heart, {name}: {unmeasured} rows without a cholesterol measurement (0) are {done}")
        if cholesterol == "drop_rows":
            whole = whole[whole["chol"] != 0]
        tables.append(whole.assign(site=k))
    rows = pd.concat(tables, ignore_index=True)
    features = []
    for column in COLUMNS[:10]:
        if column in _LEVELS:
            features += [(rows[column] == level).to_numpy(float) for level in _LEVELS[column][1:]]
        elif column != "chol" or cholesterol != "drop_column":
            features.append(rows[column].to_numpy(float))
    return Dataset(
        torch.from_numpy(np.stack(features, axis=1)).float(),
        torch.tensor((rows["num"] > 0).tolist()).long(),
        "bernoulli",
        ("healthy", "disease"),
        torch.tensor(rows["site"].tolist()),
        HOSPITALS,
        notes=tuple(notes),
    )


def _files(path: str | Path | None, root: str | Path | None) -> dict[int, tuple[str, Path]]:
    """Hospital's number -> its name and file."""
    every = {k: (name, f"processed.{name}.data") for k, name in enumerate(HOSPITALS)}
    if path is not None and (one := Path(path).expanduser()).is_file():
        found = {k: (name, one) for k, (name, file) in every.items() if file == one.name}
        if not found:
            raise ValueError(f"{one} is none of {', '.join(file for _, file in every.values())}: keep the file's name")
        return found
    folder = _folder(path, root)
    return {k: (name, folder / file) for k, (name, file) in every.items()}


def _folder(path: str | Path | None, root: str | Path | None) -> Path:
    base = data_root(root)
    places = [base / "heart", base / "heart_disease", base / "sites" / "heart_disease"]
    if path is not None:
        places = [Path(path).expanduser()]
    for place in places:
        if (place / f"processed.{HOSPITALS[0]}.data").is_file():
            return place
    raise FileNotFoundError(
        f"the heart data are not in {', '.join(map(str, places))}: put the four processed.*.data files of "
        "the UCI Heart Disease set (archive.ics.uci.edu, number 45) into the first place, or"
        " give their folder as path"
    )


def _read(path: Path) -> pd.DataFrame:
    """The 11 columns used, as numbers; missing values are NaN."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the heart data are four files, one a hospital")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: fetch it again")
    text = pd.read_csv(path, header=None, dtype=str, skipinitialspace=True)
    if text.shape[1] != len(COLUMNS):
        raise ValueError(f"{path} has {text.shape[1]} columns and should have {len(COLUMNS)}: fetch it again")
    text.columns = COLUMNS
    used = text[[*COLUMNS[:10], "num"]].replace("?", np.nan)
    table = used.apply(pd.to_numeric, errors="coerce")
    strange = (table.isna() & used.notna()).to_numpy()
    for column, levels in _LEVELS.items():
        strange[:, COLUMNS.index(column)] |= (table[column].notna() & ~table[column].isin(levels)).to_numpy()
    if strange.any():
        row, column = np.argwhere(strange)[0]
        raise ValueError(
            f"{path}, row {row + 1}, column {used.columns[column]!r}: {used.iat[row, column]!r} is not valid"
        )
    return table
