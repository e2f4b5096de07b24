"""The command line, called in this process as the console script calls it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.compare import same
from support.tables import small, small_of, written

from pyrofl import cli
from pyrofl.run import Run
from pyrofl.store import RunDirectory, load_tree, read_metrics


class Done(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture
def pyrofl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """`pyrofl("run", "a.toml")` in an empty working directory with the configuration `a.toml`."""
    monkeypatch.chdir(tmp_path)
    written(Path("a.toml"), small())

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["pyrofl", *arguments])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return Done(int(code), out, err)

    return call


def failed(done: Done) -> str:
    """The one message of a command that failed: exit 2, no traceback, nothing else on stderr."""
    assert done.code == 2
    assert done.err.startswith("error: ") and "Traceback" not in done.err + done.out
    return re.sub(r"\s+", " ", done.err)


def same_server(a: str, b: str) -> None:
    (one, meta), (other, other_meta) = (load_tree(Path(d) / "server.safetensors") for d in (a, b))
    same(one, other)
    assert meta == other_meta


def metrics(directory: str) -> list[Any]:
    return list(read_metrics(Path(directory) / "metrics.csv"))


def test_run_prints_configuration_partition_and_a_line_a_round(pyrofl: Call) -> None:
    done = pyrofl("run", "a.toml")
    assert done.code == 0 and done.err == ""
    for text in ("seed = 1", 'name = "bayfl"', 'pooling = "scale"', "3 clients", "client0"):
        assert text in done.out
    lines = re.findall(r"^round (\d)/3 \| loss [\d.]+ \(nll [\d.]+ \+ kl [\d.]+\).* down, .* up, .* s$", done.out, re.M)
    assert lines == ["1", "2", "3"]
    assert "personal accuracy" in done.out and "worst client" in done.out
    assert "engine: sequential (as configured); device: cpu" in done.out
    assert "done: runs/a" in done.out
    written_files = {p.name for p in Path("runs/a").iterdir()}
    assert {"config.toml", "server.safetensors", "metrics.csv", "timings.csv", "clients"} <= written_files
    header = Path("runs/a/config.toml").read_text()
    assert header.startswith("# command: pyrofl run a.toml\n# versions: pyrofl ")
    assert {r.round for r in metrics("runs/a")} == {1, 2, 3}


def test_overrides_and_out(pyrofl: Call) -> None:
    assert pyrofl("run", "a.toml", "seed=5", "rounds=1", "--out", "b").code == 0
    assert "seed = 5" in Path("b/config.toml").read_text()
    assert {r.round for r in metrics("b")} == {1}


def stop_after(number: int, patch: pytest.MonkeyPatch) -> None:
    """Interrupt every run when it has done so many rounds."""
    step = Run.step

    def stops(self: Run) -> Any:
        if self.round == number:
            raise KeyboardInterrupt
        return step(self)

    patch.setattr(Run, "step", stops)


def test_resume_goes_on_to_the_same_result(pyrofl: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    pyrofl("run", "a.toml", "--out", "whole")
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        done = pyrofl("run", "a.toml", "--out", "parts")
    assert done.code == 130 and done.err == ""
    assert "stopped: round 1 stands. Go on with: pyrofl resume parts" in done.out
    done = pyrofl("resume", "parts")
    assert done.code == 0 and "going on after round 1 of 3" in done.out and "round 2/3" in done.out
    assert Path("whole/metrics.csv").read_bytes() == Path("parts/metrics.csv").read_bytes()
    same_server("whole", "parts")


def test_resuming_a_finished_run_says_so_and_does_nothing(pyrofl: Call) -> None:
    pyrofl("run", "a.toml")
    before = {p: p.read_bytes() for p in Path("runs/a").rglob("*") if p.is_file()}
    done = pyrofl("resume", "runs/a")
    assert done.code == 0
    assert "round 3 of 3 is done: nothing to do. More rounds: pyrofl resume runs/a rounds=6" in done.out
    assert {p: p.read_bytes() for p in Path("runs/a").rglob("*") if p.is_file()} == before


def test_more_rounds_are_the_total_and_are_remembered(pyrofl: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    pyrofl("run", "a.toml", "rounds=2", "evaluate={every = 1, draws = 2, final_draws = 2}", "--out", "b")
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        assert pyrofl("resume", "b", "rounds=4").code == 130
    assert "going on after round 3 of 4" in pyrofl("resume", "b").out
    assert {r.round for r in metrics("b")} == {1, 2, 3, 4}
    header = Path("b/config.toml").read_text()
    assert "# command: pyrofl run a.toml rounds=2" in header and "# command: pyrofl resume b rounds=4" in header
    pyrofl("run", "a.toml", "rounds=4", "evaluate={every = 1, draws = 2, final_draws = 2}", "--out", "once")
    same_server("b", "once")


def test_resume_changes_only_what_may_change(pyrofl: Call) -> None:
    pyrofl("run", "a.toml", "rounds=1", "--out", "b")
    message = failed(pyrofl("resume", "b", "seed=4"))
    assert "seed=4: only rounds, engine, device, evaluate, flower, on_error can change on resuming" in message
    message = failed(pyrofl("resume", "nowhere"))
    assert "nowhere holds no run (no config.toml); start one with `pyrofl run FILE --out nowhere`" in message
    config = Path("b/config.toml")
    config.write_text(config.read_text().replace("seed = 1", "seed = 2"))
    assert "was made with another configuration" in failed(pyrofl("resume", "b", "rounds=2"))


def files(directory: str) -> dict[str, bytes]:
    """The files of a run that do not depend on when and by which command they were made."""
    found = {str(p.relative_to(directory)): p.read_bytes() for p in Path(directory).rglob("*") if p.is_file()}
    found["config.toml"] = re.sub(rb"(?m)^#.*\n", b"", found["config.toml"])
    return {name: content for name, content in found.items() if name != "timings.csv"}


@pytest.mark.parametrize("method", ["bayfl", "alone"])
def test_a_resumed_run_has_the_bytes_of_an_unbroken_one(
    pyrofl: Call, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    written(Path("a.toml"), small_of(method))
    pyrofl("run", "a.toml", "--out", "whole")
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        assert pyrofl("run", "a.toml", "--out", "parts").code == 130
    assert pyrofl("resume", "parts").code == 0
    one, other = files("whole"), files("parts")
    assert {"server.safetensors", "metrics.csv", "rows-personal.safetensors", "partition.csv"} <= one.keys()
    assert [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)] == []


TOTALS = pytest.mark.parametrize(
    "method",
    [{"name": "fedphp"}, {"name": "bayfl", "schedule": "a/sqrt(K)"}, {"name": "support.totals:Slow"}],
    ids=lambda m: m["name"],
)


@TOTALS
def test_rounds_that_decide_the_updates_are_fixed(pyrofl: Call, method: dict[str, Any]) -> None:
    written(Path("b.toml"), small(method=method, rounds=2))
    assert pyrofl("run", "b.toml", "--out", "b").code == 0
    before = {p: p.read_bytes() for p in Path("b").rglob("*") if p.is_file()}
    message = failed(pyrofl("resume", "b", "rounds=4"))
    assert f"rounds = 4: b was made with rounds = 2, which is fixed for method {method['name']}: its updates" in message
    assert "Start it anew: pyrofl run b/config.toml rounds=4 --out ANOTHER" in message
    assert {p: p.read_bytes() for p in Path("b").rglob("*") if p.is_file()} == before
    assert pyrofl("evaluate", "b", "--draws", "25").code == 0
    assert pyrofl("resume", "b", "on_error=stop").code == 0
    assert pyrofl("run", "b/config.toml", "rounds=4", "--out", "c").code == 0
    pyrofl("run", "b.toml", "rounds=4", "--out", "d")
    same_server("c", "d")


@pytest.mark.parametrize("total", [1, 2])
def test_fewer_rounds_than_are_done_are_refused(pyrofl: Call, total: int) -> None:
    pyrofl("run", "a.toml", "--out", "b")
    before = Path("b/config.toml").read_bytes()
    message = failed(pyrofl("resume", "b", f"rounds={total}"))
    assert f"rounds = {total} is the total, and round 3 of b is done: give rounds=3 or more" in message
    assert Path("b/config.toml").read_bytes() == before


def test_another_engine_than_the_one_that_keeps_the_states_is_refused_and_not_recorded(pyrofl: Call) -> None:
    pytest.importorskip("flwr", reason="needs pip install 'pyrofl[flower]'")
    written(Path("b.toml"), small_of("alone"))
    for first, other, why in (
        ("flower", "sequential", "go on with engine = 'flower'"),
        ("sequential", "flower", "go on with that one"),
    ):
        assert pyrofl("run", "b.toml", f"engine={first}", "rounds=1", "--out", first).code == 0
        before = Path(first, "config.toml").read_bytes()
        assert why in failed(pyrofl("resume", first, f"engine={other}", "rounds=2"))
        assert Path(first, "config.toml").read_bytes() == before
        assert pyrofl("resume", first, "rounds=2").code == 0


def test_a_score_that_the_run_cannot_take_is_refused_and_not_recorded(pyrofl: Call) -> None:
    pyrofl("run", "a.toml", "rounds=1", "--out", "b")
    before = Path("b/config.toml").read_bytes()
    assert "validation" in failed(pyrofl("resume", "b", "rounds=2", "evaluate.temperature=true"))
    assert Path("b/config.toml").read_bytes() == before


def test_a_run_is_not_overwritten_unless_asked(pyrofl: Call) -> None:
    pyrofl("run", "a.toml", "rounds=1")
    Path("runs/a/notes.txt").write_text("mine")
    assert "runs/a already holds a run: go on with `pyrofl resume runs/a`" in failed(pyrofl("run", "a.toml"))
    assert "unknown key sede" in failed(pyrofl("run", "a.toml", "sede=1", "--overwrite"))
    assert {r.round for r in metrics("runs/a")} == {1}, "a run is not removed for one that cannot start"
    assert pyrofl("run", "a.toml", "rounds=2", "--overwrite").code == 0
    assert {r.round for r in metrics("runs/a")} == {1, 2}
    assert Path("runs/a/notes.txt").read_text() == "mine"


def test_a_run_that_cannot_start_leaves_no_directory_behind(pyrofl: Call) -> None:
    assert "no such file" in failed(pyrofl("run", "a.toml", "start=nowhere"))
    assert pyrofl("run", "a.toml", "rounds=1").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "none.toml"), "none.toml: no such file"),
        (("run", "."), ".: cannot be read: Is a directory"),
        (("run", "a.toml", "method.epoch=1"), 'unknown key method.epoch; did you mean "epochs"?'),
        (("run", "a.toml", "method.epochs=x"), "method.epochs = 'x'"),
        (("run", "a.toml", "seed"), "write key=value, for example method.epochs=1"),
        (("run", "a.toml", "data=csv"), "data.path is missing"),
        (("run", "a.toml", "data=csv", "data.path=none.csv", "data.target=y", "data.likelihood=gaussian"), "none.csv"),
        (("compare", "none"), "none is not a run directory"),
        (("list", "method"), "unknown list 'method'; did you mean \"methods\"?"),
        (("partition", "none.toml"), "none.toml: no such file"),
    ],
)
def test_mistakes_are_one_message(pyrofl: Call, arguments: tuple[str, ...], message: str) -> None:
    assert message in failed(pyrofl(*arguments))


def test_unknown_commands_and_options_are_refused(pyrofl: Call) -> None:
    for arguments in (("runn", "a.toml"), ("run", "a.toml", "--ot", "b"), ("run",)):
        done = pyrofl(*arguments)
        assert done.code == 2 and "Traceback" not in done.err


def test_a_client_that_fails_is_shown_in_full_once(pyrofl: Call) -> None:
    table = small(
        data={"name": "synthetic", "sites": 3, "rows": 12, "likelihood": "gaussian"},
        method={"name": "fedavg", "epochs": 3.0, "size": 2, "optimizer": "sgd:1e30"},
        rounds=1,
    )
    written(Path("wild.toml"), table)
    done = pyrofl("run", "wild.toml")
    assert done.code == 1 and "done: " not in done.out
    assert "nothing was learned: every round was skipped" in done.out
    assert "left out: client client0: step " in done.out and "is not finite" in done.out
    assert done.out.count("Traceback") == 1
    assert "and 2 more left out: client1, client2" in done.out
    assert "round 1 was skipped: no client's reply could be used" in done.out
    again = pyrofl("resume", "runs/wild")
    assert again.code == 1 and "nothing to do" in again.out and "nothing was learned" in again.out
    message = failed_stop(pyrofl("run", "wild.toml", "on_error=stop", "--out", "c"))
    assert "round 1, client client0: step " in message


def failed_stop(done: Done) -> str:
    assert done.code == 2 and done.err.startswith("error: ")
    return done.err


def test_what_stands_in_brackets_in_a_client_s_name_is_shown(pyrofl: Call) -> None:
    rows = "".join(f"{i % 2},{i / 7},[red]{'AB'[i // 10]}\n" for i in range(20))
    Path("d.csv").write_text("y,x,site\n" + rows)
    data = {"name": "csv", "path": "d.csv", "target": "y", "site": "site", "likelihood": "categorical"}
    written(Path("b.toml"), small(data=data, rounds=1))
    done = pyrofl("run", "b.toml")
    assert done.code == 0 and re.search(r"worst \[red\][AB]", done.out)
    assert re.search(r"^. \[red\]A ", done.out, re.M), "the partition"
    assert "[red]" in pyrofl("compare", "runs/b").out


def test_partition_shows_who_holds_what_without_training(pyrofl: Call) -> None:
    done = pyrofl("partition", "a.toml", "data.sites=4", "--plot", "p.png")
    assert done.code == 0
    assert "4 clients" in done.out and "client3" in done.out and "wrote p.png" in done.out
    assert Path("p.png").read_bytes()[:4] == b"\x89PNG"
    assert not Path("runs").exists()


def test_compare_shows_scores_on_shared_rows_and_at_a_temperature(pyrofl: Call) -> None:
    data = "data={ name = 'synthetic', sites = 3, rows = 20, validation = 0.2 }"
    asked = "evaluate={ draws = 2, final_draws = 3, balanced = true, matched = true, temperature = true }"
    assert pyrofl("run", "a.toml", data, asked).code == 0
    done = pyrofl("compare", "runs/a", "--out", "c")
    for title in ("each class weighing the same", "weighted to each client's own labels", "the temperature of each"):
        assert title in done.out
    assert {"balanced accuracy", "matched nll", "tempered ece"} <= set(Path("c/compare.csv").read_text().split(","))
    found = {(r.metric, r.client): r.value for r in metrics("runs/a")}
    assert found["tempered/temperature", "client0"] is not None
    assert ("balanced/accuracy", "client2") in found and ("balanced/accuracy", "(pooled)") not in found


def test_compare_is_one_table_and_figures(pyrofl: Call) -> None:
    for method in ("fedavg", "meta_bayfl", "alone"):
        written(
            Path(f"{method}.toml"),
            small_of(method, **({"optimizers": ["sgd:0.1", "adam:0.01"]} if method == "meta_bayfl" else {})),
        )
        assert pyrofl("run", f"{method}.toml").code == 0
    done = pyrofl("compare", "runs/fedavg", "runs/meta_bayfl", "runs/alone", "--out", "c")
    assert done.code == 0
    for text in (
        "personal models",
        "global models",
        "accuracy (+- spread)",
        "NLL",
        "Brier",
        "ECE",
        "meta_bayfl: selected optimizers",
    ):
        assert text in done.out
    names = {p.name for p in Path("c").iterdir()}
    assert names == {
        "compare.csv",
        "learning-personal.png",
        "learning-global.png",
        "reliability-personal.png",
        "reliability-global.png",
        "optimizers-meta_bayfl.png",
    }
    assert 'did you mean "fedavg"' in failed(pyrofl("compare", "runs/fedavgg"))


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("methods", ("meta_bayfl", "optimizers", "fedprox", "mu")),
        ("priors", ("horseshoe", "gaussian", "scale")),
        ("guides", ("normal", "init_scale", "delta")),
        ("likelihoods", ("poisson",)),
        ("datasets", ("digits", "csv", "target")),
        ("partitions", ("dirichlet", "alpha")),
        ("optimizers", ("adam", "b1", "sgd", "momentum")),
        ("engines", ("auto", "sequential", "vectorised")),
    ],
)
def test_list_shows_names_and_keys(pyrofl: Call, what: str, shown: tuple[str, ...]) -> None:
    done = pyrofl("list", what)
    assert done.code == 0
    assert all(word in done.out for word in shown)
    assert not re.search(r"\b(kwargs|args|self|program|init_loc_fn)\b", done.out)


def test_version(pyrofl: Call) -> None:
    done = pyrofl("--version")
    assert done.code == 0 and re.fullmatch(r"pyrofl \d+\.\d+\.\d+\n", done.out)


def test_the_command_of_a_run_is_recorded_as_it_can_be_pasted(pyrofl: Call) -> None:
    pyrofl("run", "a.toml", 'method={name = "fedavg"}', "rounds=1", "--out", "b")
    first = Path("b/config.toml").read_text().splitlines()[0]
    assert first == """# command: pyrofl run a.toml 'method={name = "fedavg"}' rounds=1 --out b"""
    assert RunDirectory(Path("b")).open()[0] == 1
