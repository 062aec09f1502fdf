"""CIFAR-10 in both editions: accepted and rejected files, and the real pixels if they are available."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gridml import datasets
from gridml.datasets import CIFAR10_CLASSES, public
from gridml.datasets.pinned import Pin, Source, digest
from gridml.errors import DataError

Image = pytest.importorskip("PIL.Image", reason="the JPEG edition is read with Pillow")


def ignore(line: str) -> None:
    """Ignore a progress line."""


def jpeg(shade: int, size: tuple[int, int] = (32, 32)) -> bytes:
    packed = io.BytesIO()
    Image.new("RGB", size, (shade, shade, shade)).save(packed, "JPEG", quality=95)
    return packed.getvalue()


def write_photos(folder: Path) -> None:
    """Two photos of each class to train on and one to test on, in a shade of grey that encodes number and class."""
    for split, numbers in (("train", 2), ("test", 1)):
        for label, name in enumerate(CIFAR10_CLASSES):
            (folder / split / name).mkdir(parents=True)
            for number in range(numbers):
                (folder / split / name / f"{number:04}.jpg").write_bytes(jpeg(100 * number + 10 * label))


def pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:xz") as files:
        for split in ("train", "test"):
            files.add(folder / split, split)


@pytest.mark.parametrize("packed", [False, True], ids=["folders", "archive"])
def test_the_classes_of_jpeg_files_take_turns(tmp_path: Path, packed: bool) -> None:
    write_photos(tmp_path / "files")
    place = tmp_path / "files"
    if packed:
        place = tmp_path / "packed"
        place.mkdir()
        pack(tmp_path / "files", place / "cifar10-jpeg.tar.xz")
    arrays = public.read_jpegs(place, ignore)
    assert arrays["train-labels"].tolist() == [*range(10), *range(10)]
    assert arrays["train-images"].shape == (20, 3, 32, 32)
    assert arrays["test-images"].dtype == np.uint8
    wanted = [100 * number + 10 * label for number in range(2) for label in range(10)]
    assert np.abs(arrays["train-images"].mean((1, 2, 3)) - wanted).max() < 2


@pytest.mark.parametrize(
    ("path", "payload", "error", "message"),
    [
        ("train/cat/0000.jpg", jpeg(1, (64, 32)), DataError, "64 × 32 pixels, expected 32 × 32"),
        ("train/cat/0000.jpg", b"<html>not found</html>", OSError, "cannot identify"),
    ],
    ids=["size", "web page"],
)
def test_other_files_are_refused(
    tmp_path: Path, path: str, payload: bytes, error: type[Exception], message: str
) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(payload)
    with pytest.raises(error, match=message):
        public.read_jpegs(tmp_path, ignore)


@pytest.mark.parametrize("path", ["train/unicorn/0000.jpg", "train/cat/x.jpg", "0000.jpg", "old/cat/0000.jpg"])
def test_files_that_are_no_photos_of_it_are_left_out(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_bytes(b"no photo")
    with pytest.raises(DataError, match="train-images holds 0 items, expected 153600000"):
        datasets.cifar10(
            tmp_path / "cache", edition="jpeg", sources=[Source("here", partial(public.read_jpegs, tmp_path))]
        )


RECORD_FILES = {
    "train-records": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test-records": ("test_batch.bin",),
}


def small_records(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Six files with four records each, and pins with their digests."""
    random = np.random.default_rng(0)
    files = {name: random.integers(0, 256, (4, 3073), np.uint8) for names in RECORD_FILES.values() for name in names}
    pins = tuple(
        Pin(array, (4 * len(names), 3073), "|u1", tuple(digest(files[name]) for name in names))
        for array, names in RECORD_FILES.items()
    )
    monkeypatch.setattr(public, "PHOTOS", dataclasses.replace(public.PHOTOS, pins=pins))
    return files


@pytest.mark.parametrize("packed", [False, True], ids=["files", "archive"])
def test_the_original_is_six_pinned_files_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    files = small_records(monkeypatch)
    (tmp_path / "cifar10").mkdir()
    for name, records in files.items():
        (tmp_path / "cifar10" / name).write_bytes(records.tobytes())
    if packed:
        with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "cifar10", "cifar-10-batches-bin")
        shutil.rmtree(tmp_path / "cifar10")
        (tmp_path / "cifar10").mkdir()
        (tmp_path / "cifar-10-binary.tar.gz").rename(tmp_path / "cifar10" / "cifar-10-binary.tar.gz")
    photos = datasets.cifar10(tmp_path)
    assert photos.train.images.shape == (20, 3, 32, 32)
    assert photos.train.labels.dtype == np.int64
    np.testing.assert_array_equal(photos.test.labels, files["test_batch.bin"][:, 0])
    np.testing.assert_array_equal(photos.train.images[4].reshape(-1), files["data_batch_2.bin"][0, 1:])
    base = photos.train.images
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)  # the pixels stay on the disk
    assert not photos.train.images.flags.writeable
    assert not photos.train.labels.flags.writeable


def test_two_files_of_the_original_in_each_other_s_place_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = small_records(monkeypatch)
    names = list(files)
    names[0], names[1] = names[1], names[0]
    (tmp_path / "cifar10").mkdir()
    for name, records in zip(names, files.values(), strict=True):
        (tmp_path / "cifar10" / name).write_bytes(records.tobytes())
    source = public.PHOTOS.sources(tmp_path / "cifar10", None)[0]
    with pytest.raises(DataError, match=f"expected {digest(files['data_batch_1.bin'])}"):
        datasets.cifar10(tmp_path, sources=[source])


def test_an_edition_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match='expected "original" or "jpeg"'):
        datasets.cifar10(tmp_path, edition="png")  # type: ignore[arg-type]


def test_the_real_files_have_the_pinned_pixels() -> None:
    cache, data = datasets.folders(os.environ)
    if not (cache / "cifar10-jpeg").is_dir() and (data is None or not (data / "cifar10-jpeg").is_dir()):
        pytest.skip("GRIDML_DATA names no folder with cifar10-jpeg/ in it")
    photos = datasets.cifar10(edition="jpeg")
    assert photos.train.images.shape == (50_000, 3, 32, 32)
    assert np.bincount(photos.test.labels).tolist() == [1000] * 10
    assert photos.train.labels[:12].tolist() == [*range(10), 0, 1]
