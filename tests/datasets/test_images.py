"""Image folders, their layouts, and the cache of decoded images."""

import importlib

import numpy as np
import pytest
import torch
from PIL import Image

from pyrofl.datasets import DATASETS, imagefolder
from pyrofl.datasets.files import cached
from pyrofl.datasets.images import decode


def paint(path, value, mode="L", size=(4, 3)):
    """A picture of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


def levels(x):
    return (x.reshape(len(x), -1)[:, 0] * 255).round().int().tolist()


def test_train_and_test_folders(tmp_path):
    for i, (split, label) in enumerate([("train", "10"), ("train", "2"), ("train", "2"), ("test", "2")]):
        paint(tmp_path / "set" / split / label / f"{i}.png", 10 * i)
    data = imagefolder(path="set", root=tmp_path)
    assert data.classes == ("2", "10")  # by value, not by spelling
    assert data.y.tolist() == [1, 0, 0] and levels(data.x) == [0, 10, 20]
    assert data.x.shape == (3, 1, 3, 4) and data.x.dtype == torch.float32
    assert data.test is not None and data.test[1].tolist() == [0] and levels(data.test[0]) == [30]
    assert data.site is None


def test_domains_are_natural_clients(tmp_path):
    paint(tmp_path / "web" / "cup" / "1.png", 1)
    paint(tmp_path / "web" / "pen" / "2.png", 2)
    paint(tmp_path / "cam" / "pen" / "3.png", 3)
    data = imagefolder(path=tmp_path)
    assert data.sites == ("cam", "web") and data.site.tolist() == [0, 1, 1]
    assert data.classes == ("cup", "pen") and data.y.tolist() == [1, 0, 1]
    assert levels(data.x) == [3, 1, 2] and data.test is None


def test_class_folders_alone(tmp_path):
    paint(tmp_path / "a" / "1.png", 1)
    paint(tmp_path / "b" / "2.png", 2)
    data = imagefolder(path=tmp_path)
    assert (data.classes, data.site, data.test, data.sites) == (("a", "b"), None, None, ())


def test_colour_makes_three_channels_of_all(tmp_path):
    paint(tmp_path / "a" / "1.png", 51)
    paint(tmp_path / "a" / "2.png", (0, 102, 255), "RGB")
    x = imagefolder(path=tmp_path).x
    assert x.shape == (2, 3, 3, 4)
    assert x[:, :, 0, 0].tolist() == [pytest.approx([0.2] * 3), pytest.approx([0, 0.4, 1])]


def test_pixels_keep_their_places(tmp_path):
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    (tmp_path / "a").mkdir()
    Image.fromarray(array).save(tmp_path / "a" / "1.png")
    assert (imagefolder(path=tmp_path).x * 255).round().int()[0, 0].tolist() == array.tolist()


def test_limit_takes_the_first_of_each_class_in_each_split(tmp_path):
    for split in ("train", "test"):
        for label in "ab":
            for i in range(3):
                paint(tmp_path / split / label / f"{i}.png", i)
    data = imagefolder(path=tmp_path, limit=2)
    assert levels(data.x) == [0, 1, 0, 1] and levels(data.test[0]) == [0, 1, 0, 1]
    assert any("first 2 images" in note for note in data.notes)


def test_sizes_must_agree_or_be_given(tmp_path):
    paint(tmp_path / "a" / "1.png", 1)
    paint(tmp_path / "a" / "2.png", 2, size=(8, 6))
    with pytest.raises(ValueError, match=r"2.png is 8 x 6 pixels and .*1.png is 4 x 3: give a common size"):
        imagefolder(path=tmp_path)
    assert imagefolder(path=tmp_path, size=5).x.shape == (2, 1, 5, 5)


def test_a_broken_image_is_named(tmp_path):
    paint(tmp_path / "a" / "1.png", 1)
    (tmp_path / "a" / "2.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"2.png cannot be read as an image"):
        imagefolder(path=tmp_path)


def test_sixteen_bit_images_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((2, 2), 40_000, dtype=np.uint16)).save(tmp_path / "a" / "1.png")
    with pytest.raises(ValueError, match="more than 8 bits"):
        imagefolder(path=tmp_path)


def test_other_files_are_passed_over(tmp_path):
    paint(tmp_path / "a" / "1.png", 1)
    (tmp_path / "a" / "notes.txt").write_text("hello")
    (tmp_path / ".hidden").mkdir()
    assert len(imagefolder(path=tmp_path).x) == 1


def test_layouts_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is neither at"):
        imagefolder(path="nowhere", root=tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no folders"):
        imagefolder(path=tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no image files"):
        imagefolder(path=tmp_path)
    paint(tmp_path / "b" / "c" / "1.png", 1)
    with pytest.raises(ValueError, match="b holds folders and a does not"):
        imagefolder(path=tmp_path)


def test_a_test_class_unknown_to_train_is_refused(tmp_path):
    paint(tmp_path / "train" / "a" / "1.png", 1)
    paint(tmp_path / "test" / "z" / "1.png", 1)
    with pytest.raises(ValueError, match="class folders that train has not: z"):
        imagefolder(path=tmp_path)


def test_progress_is_told(tmp_path):
    paths = [paint(tmp_path / f"{i}.png", i) for i in range(150)]
    told = []
    decode(paths, progress=lambda *a: told.append(a), what="set")
    assert told == [(100, 150, "set"), (150, 150, "set")]


def test_decoded_images_are_kept_and_follow_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("pyrofl.datasets.imagefolder"), "_WORTH_KEEPING", 1)
    first = paint(tmp_path / "set" / "a" / "1.png", 1)
    told = []

    def load():
        return levels(imagefolder(path="set", root=tmp_path, progress=lambda *a: told.append(a)).x)

    assert load() == [1] and load() == [1]
    assert len(told) == 1  # the second time nothing was decoded
    paint(tmp_path / "set" / "a" / "2.png", 2)
    assert load() == [1, 2]
    first.unlink()
    assert load() == [2]


def test_a_damaged_cache_is_made_again_and_an_unwritable_place_is_no_error(tmp_path):
    x = torch.arange(6, dtype=torch.uint8)
    file = tmp_path / "sub" / "x.safetensors"
    assert torch.equal(cached(file, lambda: x), x)
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    assert torch.equal(cached(file, lambda: x), x) and file.read_bytes() == whole
    assert [p.name for p in file.parent.iterdir()] == ["x.safetensors"]
    (tmp_path / "blocked").write_text("a file where a folder should be")
    assert torch.equal(cached(tmp_path / "blocked" / "x.safetensors", lambda: x), x)


def test_named_trees(tmp_path):
    for domain in ("amazon", "dslr"):
        paint(tmp_path / "officecaltech10" / domain / "mug" / "1.jpg", (9, 9, 9), "RGB", (30, 20))
    paint(tmp_path / "tinyimagenet" / "train" / "n1" / "1.jpg", (9, 9, 9), "RGB", (64, 64))
    office = DATASETS["officecaltech10"](root=tmp_path)
    assert office.x.shape == (2, 3, 64, 64) and office.sites == ("amazon", "dslr")
    assert DATASETS["tinyimagenet"](root=tmp_path).x.shape == (1, 3, 64, 64)
    with pytest.raises(FileNotFoundError, match=r"tinyimagenet is not at .*unpack it there as \{train,test\}"):
        DATASETS["tinyimagenet"](root=tmp_path / "elsewhere")
