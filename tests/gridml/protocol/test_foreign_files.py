"""Files from untrusted processes: which are read, and that no link is followed and no pipe waited for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridml.protocol import bundle
from gridml.protocol.foreign import ForeignFile, map_array, read_end, read_regular, remove

pytestmark = pytest.mark.timeout(20)


def a_sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 * 2**40)


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "a sparse file": a_sparse_file,
    "a FIFO": os.mkfifo,
    "a folder": lambda path: (path / "in it").mkdir(parents=True),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file": lambda path: path.symlink_to(__file__),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_what_was_not_agreed_is_not_read_and_can_be_removed(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    path = tmp_path / "it"
    make(path)
    with pytest.raises(ForeignFile, match="it "):
        read_regular(path, 1000)
    remove(path)
    assert not os.path.lexists(path)
    remove(path)
    with pytest.raises(FileNotFoundError):
        read_regular(path, 1000)
    assert Path(__file__).stat().st_size  # nothing was followed


@pytest.mark.parametrize("size", [0, 1, 999, 1000])
def test_a_file_up_to_the_limit_is_read(tmp_path: Path, size: int) -> None:
    (tmp_path / "it").write_bytes(bytes(size))
    assert read_regular(tmp_path / "it", 1000) == bytes(size)
    assert read_end(tmp_path / "it", 10) == bytes(min(size, 10))


def test_one_byte_more_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(bytes(1001))
    with pytest.raises(ForeignFile, match="1,001 bytes, expected at most 1,000"):
        read_regular(tmp_path / "it", 1000)


def test_a_file_that_grows_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "it", os.read
    path.write_bytes(bytes(10))

    def growing(handle: int, count: int) -> bytes:
        with path.open("ab") as file:
            file.write(bytes(100))
        return read(handle, count)

    monkeypatch.setattr(os, "read", growing)
    with pytest.raises(ForeignFile, match="grew"):
        read_regular(path, 1000)


def test_the_end_of_a_file_of_two_terabytes_is_read(tmp_path: Path) -> None:
    a_sparse_file(tmp_path / "it")
    with (tmp_path / "it").open("ab") as file:
        file.write(b"the end")
    assert read_end(tmp_path / "it", 9) == b"\0\0the end"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_not_ours_to_judge(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"secret")
    (tmp_path / "it").chmod(0)
    with pytest.raises(ForeignFile, match="cannot be opened"):
        read_regular(tmp_path / "it", 1000)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOMEM])
def test_what_this_machine_refuses_is_no_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=os.strerror(number)) as error:
        read_regular(tmp_path / "it", 1000)
    assert error.value.errno == number


def a_deep_tree(path: Path, depth: int) -> None:
    before = Path.cwd()
    os.chdir(path)
    try:
        for _ in range(depth):
            os.mkdir("it")
            Path("file").touch()
            os.chdir("it")
    finally:
        os.chdir(before)


def test_a_tree_deeper_than_paths_are_long_is_removed(tmp_path: Path) -> None:
    a_deep_tree(tmp_path, 1500)
    remove(tmp_path / "it")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_nothing_that_a_folder_links_to_is_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "it" / "deeper").mkdir(parents=True)
    (tmp_path / "it" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "it" / "deeper" / "link").symlink_to(tmp_path / "kept")
    remove(tmp_path / "it")
    assert (tmp_path / "kept" / "file").exists() and len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_what_lies_where_a_file_is_being_made_is_not_followed(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    make(tmp_path / f".it.{os.getpid()}.tmp")
    bundle.write_atomic(tmp_path / "it", b"content")
    assert (tmp_path / "it").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


@pytest.mark.parametrize(
    ("dtype", "shape"), [("<U0", (-1,)), ("|V0", (-1,)), ("|S0", (3,)), ("<f4", (-2,)), ("|O", (1,))]
)
def test_an_array_that_would_end_the_process_is_refused(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """numpy divides by zero where a length is negative and items have no bytes (SIGFPE)."""
    path = tmp_path / "array.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
        file.write(bytes(64))
    with pytest.raises(ValueError, match=r"expected lengths|Array can't be memory-mapped"):
        map_array(path)


def test_an_array_is_mapped_as_numpy_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    for array in (np.arange(6, dtype="<f4").reshape(2, 3), np.asfortranarray(np.ones((2, 3))), np.array(["a", "bc"])):
        np.save(path, array)
        mapped = map_array(path)
        assert np.array_equal(mapped, array) and not mapped.flags.writeable
