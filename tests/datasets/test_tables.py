"""Text tables: what is read, and that nothing becomes a wrong number in silence."""

import pytest
import torch

from pyrofl.datasets import csv
from pyrofl.datasets.columns import in_order

PLAIN = "age,smoker,ward,died\n50,no,a,0\n61.5,yes,b,1\n40,no,a,1\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(tmp_path, text, **options):
    settings = {"target": "died", "likelihood": "bernoulli", **options}
    return csv(path=write(tmp_path / "t.csv", text), **settings)


def test_one_file_with_a_site_column(tmp_path):
    data = load(tmp_path, PLAIN, site="ward")
    assert data.x.tolist() == [[50, 0], [61.5, 1], [40, 0]] and data.x.dtype == torch.float32
    assert data.y.tolist() == [0, 1, 1] and data.classes == ("0", "1")
    assert data.sites == ("a", "b") and data.site.tolist() == [0, 1, 0]
    assert "t.csv: features as float32: age, smoker=yes" in data.notes


def test_a_folder_holds_one_file_a_site_and_one_encoder_serves_all(tmp_path):
    write(tmp_path / "d" / "south.csv", "colour,size,y\nred,1,u\n")
    write(tmp_path / "d" / "north.csv", "y,size,colour\nv,2,blue\nu,3,green\n")
    data = csv(path="d", target="y", likelihood="categorical", root=tmp_path)
    assert data.sites == ("north", "south") and data.site.tolist() == [0, 0, 1]
    assert data.x.tolist() == [[2, 0, 0], [3, 1, 0], [1, 0, 1]]  # size, green, red; blue is the reference
    assert data.y.tolist() == [1, 0, 0] and data.classes == ("u", "v")


def test_site_names_keep_their_spelling_and_numbers_their_order(tmp_path):
    data = load(tmp_path, "x,ward,died\n1,010,0\n2,9,1\n", site="ward")
    assert data.sites == ("9", "010")
    assert in_order(["b", "10", "9"]) == ["10", "9", "b"]


def test_no_site_column_means_no_natural_clients(tmp_path):
    data = load(tmp_path, PLAIN, features=["age"])
    assert data.site is None and data.sites == () and data.x.shape == (3, 1)


def test_row_numbers_are_no_features(tmp_path):
    data = load(tmp_path, "id,x,died\n1,5,0\n2,5,1\n3,6,1\n")
    assert data.x.flatten().tolist() == [5, 5, 6]
    assert "t.csv: left out, as they number the rows: id" in data.notes
    assert load(tmp_path, "id,x,died\n1,5,0\n2,5,1\n3,6,1\n", features=["id"]).x.flatten().tolist() == [1, 2, 3]


# separators, decimal marks, encodings


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found(tmp_path, separator):
    assert load(tmp_path, PLAIN.replace(",", separator), site="ward").x[1, 0] == 61.5


def test_a_byte_order_mark_is_passed_over(tmp_path):
    assert load(tmp_path, "\ufeff" + PLAIN, features=["age"]).x[0, 0] == 50


def test_semicolons_and_decimal_commas(tmp_path):
    data = load(tmp_path, "x;z;died\n1,5;7;0\n-2,25;8;1\n,5;9;1\n", features=["x", "z"])
    assert data.x[:, 0].tolist() == [1.5, -2.25, 0.5]


def test_quoted_decimal_commas_between_commas(tmp_path):
    assert load(tmp_path, 'x,died\n"1,5",0\n"2,75",1\n').x.flatten().tolist() == [1.5, 2.75]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x;died\n1,234;0\n2,500;1\n", "decimal comma or thousands separators"),
        ("x;z;died\n1,5;2.5;0\n2,5;3.5;1\n", "column 'x' has numbers with a comma and column 'z'"),
        ("x died\n1 0\n2 1\n", "has none of comma, semicolon, tab and bar"),
        ("a;b,c|d\n1;2,3|4\n", "the separator may be"),
        ("a,died\n1,5,0\n2,5,1\n", "line 2: 3 fields, and the header has 2"),
        ("a,died\n1,0\n2\n", "line 3: 1 fields, and the header has 2"),
        ("a,died\n", "has 1 lines"),
        ("a,died\n" + "x" * 200_000 + ",0\n", "line 2: field larger than field limit"),
        ("a,a,died\n1,2,0\n", "more than one column named 'a'"),
    ],
)
def test_what_is_not_certain_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, text)


def test_a_refusal_shows_the_first_lines(tmp_path):
    with pytest.raises(ValueError) as error:
        load(tmp_path, "x;died\n1,234;0\n2,500;1\n")
    assert str(error.value).endswith("The file begins:\n  x;died\n  1,234;0\n  2,500;1")


def test_asking_settles_what_was_not_certain(tmp_path):
    text = "x;died\n1,234;0\n2,500;1\n"
    assert load(tmp_path, text, decimal=",").x.flatten().tolist() == pytest.approx([1.234, 2.5])
    assert load(tmp_path, "x,died\n3,0\n4,1\n", separator=",").x.flatten().tolist() == [3, 4]


def test_a_point_between_decimal_commas_is_no_number(tmp_path):
    with pytest.raises(ValueError, match=r"column 'x': t.csv line 4 \('1.234'\)"):
        load(tmp_path, "x;died\n1,5;0\n2,5;1\n1.234;1\n", decimal=",")


def test_text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes("x,died\nMünchen,1\n".encode("latin-1"))
    with pytest.raises(ValueError, match="save it as UTF-8"):
        csv(path=tmp_path / "t.csv", target="died", likelihood="bernoulli")


# missing values, and text where numbers belong


@pytest.mark.parametrize("hole", ["", "NA", "nan", ".", "?", "n/a", "null", "inf", "x", "1_000"])
def test_a_hole_in_a_column_of_numbers_names_its_line(tmp_path, hole):
    text = f"x,z,died\n1,5,0\n{hole},6,1\n3,7,1\n"
    with pytest.raises(ValueError) as error:
        load(tmp_path, text)
    assert f"column 'x': t.csv line 3 ({hole!r})" in str(error.value)
    assert "missing = 'drop'" in str(error.value)
    data = load(tmp_path, text, missing="drop")
    assert data.x.tolist() == [[1, 5], [3, 7]] and data.y.tolist() == [0, 1]
    assert "t.csv: 1 of 3 rows with missing values dropped" in data.notes


@pytest.mark.parametrize("column", ["died", "ward", "smoker"])
def test_a_hole_in_a_target_a_site_or_a_text_column_is_missing_too(tmp_path, column):
    rows = {"age": "50", "smoker": "no", "ward": "a", "died": "1"}
    text = PLAIN + ",".join("" if c == column else v for c, v in rows.items()) + "\n"
    with pytest.raises(ValueError, match=f"column '{column}': t.csv line 5"):
        load(tmp_path, text, site="ward")
    assert len(load(tmp_path, text, site="ward", missing="drop").x) == 3


def test_a_site_that_loses_all_rows_stays_a_client(tmp_path):
    data = load(tmp_path, "x,ward,died\n1,a,0\n,b,1\n3,c,1\n", site="ward", missing="drop")
    assert data.sites == ("a", "b", "c") and data.site.tolist() == [0, 2]


def test_holes_everywhere_are_an_error_even_if_dropped(tmp_path):
    with pytest.raises(ValueError, match="every row has a missing value"):
        load(tmp_path, "x,z,died\n1,,0\n2,,1\n", missing="drop")


@pytest.mark.parametrize(
    "cells", [["0", "3+", "a", "b"], ["1.234,5", "b", "c", "d"], ["2020-01-02", "1/2/20", "x", "y"]]
)
def test_text_mixed_with_what_looks_like_numbers_is_asked_about(tmp_path, cells):
    text = "x;died\n" + "".join(f"{cell};{i % 2}\n" for i, cell in enumerate(cells))
    with pytest.raises(ValueError, match=r"mixes text with what looks like numbers.*categorical"):
        load(tmp_path, text)
    assert load(tmp_path, text, categorical=["x"]).x.shape == (4, 3)


def test_many_different_texts_are_asked_about(tmp_path):
    text = "x,died\n" + "".join(f"name{chr(97 + i // 26)}{chr(97 + i % 26)},{i % 2}\n" for i in range(60))
    with pytest.raises(ValueError, match="has 60 different texts"):
        load(tmp_path, text)
    assert load(tmp_path, text, categorical=["x"]).x.shape == (60, 59)


# names, targets


@pytest.mark.parametrize("options", [{"target": "dyed"}, {"site": "wards"}, {"features": ["agee"]}])
def test_a_wrong_column_lists_the_columns_and_the_nearest(tmp_path, options):
    with pytest.raises(ValueError, match=r"unknown column of t.csv .*did you mean.* known are age, died, smoker, ward"):
        load(tmp_path, PLAIN, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ["age", "died"]}, "is the target or the site"),
        ({"features": ["age"], "categorical": ["smoker"]}, "which are no features"),
        ({"target": "age"}, "has 3 labels .* bernoulli takes two"),
        ({"likelihood": "binary"}, "unknown likelihood 'binary'"),
        ({"likelihood": "gaussian", "classes": [0, 1]}, "classes have no meaning"),
        ({"likelihood": "poisson", "target": "age"}, r"poisson takes counts; .* t.csv line 3 \('61.5'\)"),
        ({"classes": [1, 2], "site": "ward"}, r"client 'a': '0'"),
        ({"missing": "dropp"}, "did you mean"),
    ],
)
def test_senseless_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, PLAIN, **options)


def test_numbers_and_counts_as_targets(tmp_path):
    data = load(tmp_path, PLAIN, target="age", likelihood="gaussian", features=["died"])
    assert data.y.tolist() == [50, 61.5, 40] and data.y.dtype == torch.float32 and data.classes == ()
    assert load(tmp_path, PLAIN, likelihood="poisson", features=["age"]).y.tolist() == [0, 1, 1]


def test_declared_classes_keep_a_class_that_is_absent(tmp_path):
    data = load(tmp_path, PLAIN, target="ward", likelihood="categorical", classes=["c", "b", "a"], features=["age"])
    assert data.y.tolist() == [2, 1, 2] and data.classes == ("c", "b", "a")


def test_files_with_other_columns_are_refused(tmp_path):
    write(tmp_path / "d" / "a.csv", "x,y\n1,0\n")
    write(tmp_path / "d" / "b.csv", "x,z\n1,0\n")
    with pytest.raises(ValueError, match=r"a.csv and b.csv differ in the columns 'y', 'z'"):
        csv(path=tmp_path / "d", target="y", likelihood="bernoulli")
    with pytest.raises(ValueError, match="each file is a site: leave out"):
        csv(path=tmp_path / "d", target="y", likelihood="bernoulli", site="x")
    with pytest.raises(FileNotFoundError, match="holds no table"):
        csv(path=write(tmp_path / "e" / "readme.md", "").parent, target="y", likelihood="bernoulli")
