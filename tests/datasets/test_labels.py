"""One encoder for all clients."""

import numpy as np
import pytest

from pyrofl.datasets.labels import encode, first_of_each


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["cat", "dog", "eel", "cat"], ("cat", "dog", "eel")),
        ([3, 7, 9, 3], ("3", "7", "9")),
        ([1.0, 2.0, 10.0, 1.0], ("1", "2", "10")),
        (["1", "2.0", "10", "1.0"], ("1", "2", "10")),
        (np.array([-1, 0, 2, -1]), ("-1", "0", "2")),
        ([" a", "b ", "c", "a"], ("a", "b", "c")),
        (["1", "10", "x", "1"], ("1", "10", "x")),
        ([False, True, "maybe", False], ("False", "True", "maybe")),
    ],
)
def test_codes_are_0_to_C_and_names_are_kept(values, names):
    codes, found = encode(values)
    assert codes.tolist() == [0, 1, 2, 0] and codes.dtype == np.int64
    assert found == names


def test_declared_classes_keep_their_order_and_absent_ones_their_code():
    codes, names = encode(["no", "yes"], classes=["yes", "maybe", "no"])
    assert codes.tolist() == [2, 0]
    assert names == ("yes", "maybe", "no")
    assert encode(["1.0", "2"], classes=[2, 1])[0].tolist() == [1, 0]


def test_a_label_outside_the_classes_names_client_column_and_values():
    with pytest.raises(ValueError) as error:
        encode(["a", "x", "y", "x"], classes=["a", "b"], column="died", clients=["p", "p", "q", "p"])
    text = str(error.value)
    assert "column 'died'" in text and "in 3 rows" in text
    assert "client 'p': 'x'; client 'q': 'y'" in text


@pytest.mark.parametrize("hole", [None, float("nan"), "", "  "])
def test_a_missing_label_is_an_error(hole):
    with pytest.raises(ValueError, match="column 'y' has a missing label"):
        encode(["a", hole])


def test_a_class_declared_twice_is_an_error():
    with pytest.raises(ValueError, match="name one class twice"):
        encode([1], classes=[1, "1.0"])


def test_first_of_each():
    assert first_of_each("aabab", 2) == [0, 1, 2, 4]
    assert first_of_each("aab", None) == [0, 1, 2]
    with pytest.raises(ValueError, match="at least 1"):
        first_of_each("a", 0)
