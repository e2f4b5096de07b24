"""Small generated files in the places and formats of the real data sets, for tests of documents and experiments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def write_data_root(root: Path) -> Path:
    """A data root with every set that the documents and the experiments name."""
    rng = np.random.default_rng(0)
    heart(root / "heart", rng)
    digits = [str(c) for c in range(10)]
    for name, classes, rows, shape in (
        ("mnist", digits, 15, (28, 28)),
        ("cifar10", digits, 15, (32, 32, 3)),
        ("cifar100", [f"class{c:02d}" for c in range(100)], 2, (32, 32, 3)),
    ):
        pictures(root / name / "train", classes, rows, shape, rng)
        pictures(root / name / "test", classes, 1, shape, rng)
    for domain in ("amazon", "caltech10", "dslr", "webcam"):
        pictures(root / "officecaltech10" / domain, digits, 2, (40, 30, 3), rng)
    for domain in ("camera", "phone"):
        pictures(root / "photos" / domain, ["cat", "dog"], 5, (40, 30, 3), rng)
    clinics = {f"clinic_{name}": patients(rng) for name in "abcd"}
    (root / "clinics").mkdir(parents=True)
    for name, table in clinics.items():
        table.to_csv(root / "clinics" / f"{name}.csv", index=False)
    together = pd.concat(
        [table.assign(clinic=name, visits=rng.poisson(3, len(table))) for name, table in clinics.items()]
    )
    together.to_csv(root / "patients.csv", index=False)
    return root


def pictures(folder: Path, classes: list[str], rows: int, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """FOLDER/CLASS/FILE.png of noise."""
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(rows):
            Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / name / f"{i}.png")


def patients(rng: np.random.Generator, rows: int = 24) -> pd.DataFrame:
    """Age, dose, sex as text, and an outcome that both labels have."""
    return pd.DataFrame(
        {
            "age": rng.integers(20, 90, rows),
            "dose": rng.normal(size=rows).round(2),
            "sex": rng.choice(["f", "m"], rows),
            "outcome": np.arange(rows) % 2,
        }
    )


def heart(folder: Path, rng: np.random.Generator, rows: int = 24) -> None:
    """processed.HOSPITAL.data: 14 columns without a header, a missing value in the last row."""
    folder.mkdir(parents=True)
    for name in HOSPITALS:
        table = np.column_stack(
            [
                rng.integers(30, 80, rows),  # age
                rng.integers(0, 2, rows),  # sex
                rng.integers(1, 5, rows),  # cp
                rng.integers(100, 180, rows),  # trestbps
                rng.integers(150, 350, rows),  # chol
                rng.integers(0, 2, rows),  # fbs
                rng.integers(0, 3, rows),  # restecg
                rng.integers(90, 190, rows),  # thalach
                rng.integers(0, 2, rows),  # exang
                rng.integers(0, 40, rows) / 10,  # oldpeak
                *np.ones((3, rows)),  # slope, ca, thal
                np.arange(rows) % 3,  # num
            ]
        ).astype(str)
        table[-1, 3] = "?"
        (folder / f"processed.{name}.data").write_text("\n".join(",".join(row) for row in table) + "\n")
