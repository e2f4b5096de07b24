"""The package as a whole: what importing it does not do, and who may import what."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pyrofl

ROOT = Path(pyrofl.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def place(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imported(file: Path) -> set[str]:
    """Absolute names of the modules, and of what is taken from them, that a file imports anywhere in it."""
    package, names = ("pyrofl", *file.relative_to(ROOT).parts[:-1]), set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def called(file: Path) -> set[str]:
    """Dotted names of what a file calls."""
    return {ast.unparse(node.func) for node in ast.walk(parsed(file)) if isinstance(node, ast.Call)}


def importers(*roots: str) -> set[str]:
    """Files that import any of the named top-level packages."""
    return {place(f) for f in FILES if {name.split(".")[0] for name in imported(f)} & set(roots)}


def callers(*names: str) -> dict[str, set[str]]:
    """File -> those of the named functions that it calls."""
    return {place(f): called(f) & set(names) for f in FILES if called(f) & set(names)}


def test_there_is_a_package_to_look_at() -> None:
    assert {"run.py", "methods/fedavg.py"} <= {place(f) for f in FILES}
    assert "run.py" in importers("torch") and "run.py" in callers("Contract.of")


def test_nothing_unpickles() -> None:
    assert importers("pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal") == set()
    assert callers("torch.load", "torch.save", "np.load", "numpy.load", "pd.read_pickle", "eval", "exec") == {}


def test_the_library_never_imports_models_or_experiments() -> None:
    assert importers("models", "experiments", "tests", "support") == set()


def test_heavy_imports_stay_where_they_belong() -> None:
    assert {f for f in importers("matplotlib") if not f.startswith("plots/")} <= {"empirical_bayes/figures.py"}
    assert {f for f in importers("flwr", "ray") if not f.startswith("flower/")} == set()
    assert importers("arviz", "arviz_base", "arviz_stats", "arviz_plots") <= {"arviz/adapter.py"}


def test_flower_is_used_through_its_public_modules_alone() -> None:
    public = ("flwr.app", "flwr.clientapp", "flwr.serverapp")
    used = {name for f in FILES for name in imported(f) if name.split(".")[0] == "flwr"}
    assert used and all(name.startswith(public) for name in used)


def test_the_library_prints_only_through_its_consoles() -> None:
    assert callers("print") == {}


def test_no_process_wide_state_is_set() -> None:
    assert (
        callers(
            "torch.manual_seed",
            "torch.set_default_dtype",
            "torch.set_default_device",
            "torch.set_num_threads",
            "torch.use_deterministic_algorithms",
            "np.random.seed",
            "numpy.random.seed",
            "random.seed",
            "pyro.set_rng_seed",
            "pyro.enable_validation",
            "pyro.clear_param_store",
            "pyro.settings.set",
            "pyro.param",
            "warnings.filterwarnings",
            "warnings.simplefilter",
        )
        == {}
    )


def test_every_file_says_what_it_is() -> None:
    silent = {place(f) for f in FILES if parsed(f).body and not ast.get_docstring(parsed(f))}
    assert silent <= {"__main__.py"}


# arrows point inwards: a file may import only from its own layer and those before it
LAYERS = (
    {"names", "limits", "suggest", "version", "tree", "random", "rotation", "matching", "mixing"},
    {"masks"},
    {"data", "plain", "optim", "likelihoods", "guides", "handlers", "meanfield", "bayesian", "fastpath", "program"},
    {"together"},
    {"fit", "method", "priors", "curvature", "estimate", "empirical_bayes"},
    {"candidates", "committee", "distill", "iterates", "langevin"},
    {"methods"},
    {
        "engines",
        "gate",
        "metrics",
        "store",
        "config",
        "noise",
        "dealing",
        "label_skew",
        "partition",
        "server_rows",
        "federation",
        "datasets",
        "schema",
        "compression",
        "privacy",
        "averaged",
        "secure",
        "messages",
    },
    {"posteriors", "evaluate", "shared_rows", "scoring", "run", "arviz"},
    {"diagnostics"},
    {"assembly", "catalogue", "console", "plots", "compare", "diagnose", "flower", "check_site"},
    {"report"},
)
OUTER = {"command", "figures"}  # of `empirical_bayes`: what people see; its estimators are called by methods


def layer(module: str) -> int | None:
    parts = module.split(".")
    if parts[0] != "pyrofl" or len(parts) < 2:
        return None
    if parts[1] == "empirical_bayes" and set(parts[2:]) & OUTER:
        return len(LAYERS)
    return next((i for i, names in enumerate(LAYERS) if parts[1] in names), None)


def test_arrows_point_inwards() -> None:
    for file in FILES:
        mine = layer(".".join(("pyrofl", *file.relative_to(ROOT).with_suffix("").parts)))
        for name in imported(file):
            other = layer(name)
            inward = mine is None or other is None or other <= mine
            assert inward, f"{place(file)} imports {name}, which is further out"


PROBE = """
import json, random, sys
import numpy, torch, pyro

def state():
    return {
        "torch stream": torch.get_rng_state().tolist(),
        "numpy stream": numpy.random.get_state()[1].tolist(),
        "random stream": random.getstate()[1],
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
        "validation": torch.distributions.Distribution._validate_args,
        "pyro": {k: repr(v) for k, v in pyro.settings.get().items()},
        "store": list(pyro.get_param_store().keys()),
        "handlers": len(pyro.poutine.runtime._PYRO_STACK),
        "printing": repr(torch._tensor_str.PRINT_OPTS),
        "numpy errors": numpy.geterr(),
    }

torch.manual_seed(3), numpy.random.seed(3), random.seed(3)
before = state()
import pyrofl
after = state()
print(json.dumps({k: [before[k], after[k]] for k in before if before[k] != after[k]}))
print(sorted(m for m in ("matplotlib.pyplot", "arviz", "flwr", "ray") if m in sys.modules))
"""


def test_importing_changes_nothing_in_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    changed, loaded = done.stdout.splitlines()
    assert changed == "{}"
    assert loaded == "[]"
    assert done.stderr == ""


def test_public_names_are_there_and_documented() -> None:
    assert len(set(pyrofl.__all__)) == len(pyrofl.__all__)
    for name in pyrofl.__all__:
        thing = getattr(pyrofl, name)
        if callable(thing) and not isinstance(thing, dict):
            assert thing.__doc__, f"{name} has no docstring"
    assert {"Run", "Program", "Bayesian", "METHODS", "Tree"} <= set(pyrofl.__all__)
