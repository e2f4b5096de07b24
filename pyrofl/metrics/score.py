"""What a score is, what it is called, and which way is better."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..names import nearest

Better = Literal["higher", "lower"]


class Score(NamedTuple):
    """A number, or the reason why there is none. A score is never NaN."""

    value: float | None  # None: undefined on these rows
    note: str = ""  # why it is undefined or infinite


class Meaning(NamedTuple):
    """How a score is written on an axis, and which end of it is the worse one."""

    label: str
    unit: str = ""
    better: Better | None = None  # None: a description, neither good nor bad
    low: float | None = None  # bounds of the range, where there are any
    high: float | None = None

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


SCORES: dict[str, Meaning] = {
    "accuracy": Meaning("accuracy", "share of rows", "higher", 0, 1),
    "balanced_accuracy": Meaning("balanced accuracy", "mean recall of the classes", "higher", 0, 1),
    "selective_accuracy_80": Meaning("accuracy on the surest 80%", "share of rows", "higher", 0, 1),
    "auroc": Meaning("AUROC", "area under the ROC curve", "higher", 0, 1),
    "nll": Meaning("negative log predictive density", "nats per row", "lower"),
    "brier": Meaning("Brier score", "squared probability", "lower", 0, 2),
    "ece": Meaning("expected calibration error", "probability", "lower", 0, 1),
    "adaptive_ece": Meaning("adaptive calibration error", "probability", "lower", 0, 1),
    "entropy": Meaning("predictive entropy", "nats per row", None, 0),
    "entropy_aleatoric": Meaning("aleatoric entropy", "nats per row", None, 0),
    "entropy_epistemic": Meaning("epistemic entropy", "nats per row", None, 0),
    "rmse": Meaning("root mean squared error", "units of y", "lower", 0),
    "crps": Meaning("continuous ranked probability score", "units of y", "lower"),
    "coverage_50": Meaning("coverage of the central 50% interval", "share of rows", "higher", 0, 1),
    "coverage_90": Meaning("coverage of the central 90% interval", "share of rows", "higher", 0, 1),
    "temperature": Meaning("temperature", "1: as trained", None, 0),
    "loss": Meaning("training loss", "nats per row", "lower"),
    "kl": Meaning("KL of the guide from the prior", "nats per row", "lower"),
    "neg_log_prior": Meaning("negative log prior density of the point", "nats per row", "lower"),
}
"""Every named score. The worst coverage is the lowest: intervals that miss are worse than wide ones."""


def meaning(name: str) -> Meaning:
    """The entry of `SCORES`, also for a score of a named model, `personal/accuracy`."""
    short = name.rpartition("/")[2]
    if short not in SCORES:
        raise ValueError(f"unknown score {short!r}{nearest(short, SCORES)}")
    return SCORES[short]
