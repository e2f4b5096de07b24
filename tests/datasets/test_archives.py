"""MNIST and CIFAR from their original files."""

import gzip
import struct

import numpy as np
import pytest
from PIL import Image

from pyrofl.datasets import cifar10, cifar100, fashion_mnist, mnist
from pyrofl.datasets.mnist import read_idx


def idx(path, array, pack=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if pack else raw)


def write_mnist(folder, pack=False):
    end = ".gz" if pack else ""
    for prefix, labels in (("train", [3, 1, 3]), ("t10k", [9])):
        images = np.arange(len(labels) * 6).reshape(-1, 2, 3)
        idx(folder / f"{prefix}-images-idx3-ubyte{end}", images, pack)
        idx(folder / f"{prefix}-labels-idx1-ubyte{end}", np.array(labels), pack)


@pytest.mark.parametrize(("place", "pack"), [("mnist", False), ("MNIST/raw", False), ("mnist", True)])
def test_mnist_from_idx_files(tmp_path, place, pack):
    write_mnist(tmp_path / place, pack)
    data = mnist(root=tmp_path, download=False)
    assert data.x.shape == (3, 1, 2, 3) and data.y.tolist() == [3, 1, 3]
    assert (data.x * 255).round().int().flatten().tolist() == list(range(18))
    assert data.classes == tuple("0123456789")
    assert data.test is not None and data.test[1].tolist() == [9]
    assert mnist(root=tmp_path, download=False, limit=1).y.tolist() == [3, 1]


def test_fashion_has_names(tmp_path):
    write_mnist(tmp_path / "FashionMNIST" / "raw")
    data = fashion_mnist(root=tmp_path, download=False)
    assert len(data.classes) == 10 and data.classes[3] == "Dress"


def test_a_tree_of_images_comes_first(tmp_path):
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "train" / "5").mkdir(parents=True)
    Image.new("L", (2, 2), 7).save(tmp_path / "mnist" / "train" / "5" / "1.png")
    assert mnist(root=tmp_path, download=False).classes == ("5",)


@pytest.mark.parametrize("raw", [b"", b"\0\0\x08\x01", b"\0\0\x08\x01\0\0\0\x05abc", b"\0\0\x0d\x01\0\0\0\x00"])
def test_a_cut_idx_file_is_named(tmp_path, raw):
    (tmp_path / "cut").write_bytes(raw)
    with pytest.raises(ValueError, match="cut is not a whole idx file"):
        read_idx(tmp_path / "cut")


def test_images_and_labels_must_be_as_many(tmp_path):
    write_mnist(tmp_path / "mnist")
    idx(tmp_path / "mnist" / "train-labels-idx1-ubyte", np.array([1]))
    with pytest.raises(ValueError, match=r"holds 3 images and .* holds 1 labels"):
        mnist(root=tmp_path, download=False)


def write_cifar(folder, label_bytes):
    folder.mkdir(parents=True)
    record = np.arange(3072, dtype=np.int64) % 256

    def batch(name, labels):
        rows = [np.concatenate([[5] * (label_bytes - 1), [label], record]) for label in labels]
        np.array(rows, dtype=np.uint8).tofile(folder / name)

    if label_bytes == 1:
        for i in range(5):
            batch(f"data_batch_{i + 1}.bin", [i, 0])
        batch("test_batch.bin", [1])
        (folder / "batches.meta.txt").write_text("plane\ncar\nbird\ncat\ndeer\n\n")
    else:
        batch("train.bin", [1, 2])
        batch("test.bin", [0])
        (folder / "fine_label_names.txt").write_text("apple\nbear\ncrab\n")


def test_cifar10_from_its_binary_version(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-bin", 1)
    data = cifar10(root=tmp_path, download=False)
    assert data.x.shape == (10, 3, 32, 32) and data.y.tolist() == [0, 0, 1, 0, 2, 0, 3, 0, 4, 0]
    assert data.classes == ("plane", "car", "bird", "cat", "deer")
    assert data.x[0, 1, 2, 3] == pytest.approx((1024 + 2 * 32 + 3) % 256 / 255)  # planes, then rows
    assert data.test is not None and data.test[1].tolist() == [1]


def test_cifar100_takes_the_fine_label(tmp_path):
    write_cifar(tmp_path / "cifar-100-binary", 2)
    data = cifar100(root=tmp_path, download=False)
    assert data.y.tolist() == [1, 2] and data.classes == ("apple", "bear", "crab")


def test_a_cut_batch_or_a_wrong_label_is_named(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    write_cifar(folder, 2)
    (folder / "fine_label_names.txt").write_text("apple\nbear\n")
    with pytest.raises(ValueError, match="holds label 2 and names 2 classes"):
        cifar100(root=tmp_path, download=False)
    (folder / "train.bin").write_bytes(b"123")
    with pytest.raises(ValueError, match=r"train\.bin does not hold whole images"):
        cifar100(root=tmp_path, download=False)


def test_jpeg_trees_are_said(tmp_path):
    (tmp_path / "cifar10" / "train" / "cat").mkdir(parents=True)
    Image.new("RGB", (32, 32)).save(tmp_path / "cifar10" / "train" / "cat" / "1.jpg")
    assert any("JPEG" in note for note in cifar10(root=tmp_path, download=False).notes)


@pytest.mark.parametrize("loader", [mnist, cifar10, cifar100])
def test_without_files_the_error_says_where_it_looked(tmp_path, loader):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}.*set download = true"):
        loader(root=tmp_path, download=False)


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.datasets.MNIST", offline)
    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", offline)
    for loader in (mnist, cifar10):
        with pytest.raises(FileNotFoundError, match=r"the download failed \(no route to host\): connect"):
            loader(root=tmp_path)


def test_a_download_is_read_from_where_it_lands(tmp_path, monkeypatch):
    def fetch(url, download_root, md5):
        assert url.endswith("cifar-100-binary.tar.gz") and len(md5) == 32
        write_cifar(tmp_path / "cifar-100-binary", 2)

    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", fetch)
    monkeypatch.setattr("torchvision.datasets.MNIST", lambda root, download: write_mnist(tmp_path / "MNIST" / "raw"))
    assert len(cifar100(root=tmp_path).x) == 2
    assert len(mnist(root=tmp_path).x) == 3
