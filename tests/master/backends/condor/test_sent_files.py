"""Files of `--send` keep the content that they had when the run began."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from gridml.errors import StorageError, UsageError
from master.backends.condor import submit_description
from master.backends.condor.options import CondorOptions
from master.backends.condor.submit_description import FOLDER, check, files_sent, keep, news
from master.store.rundir import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    return directory


@pytest.fixture
def options(tmp_path: Path) -> CondorOptions:
    (tmp_path / "words.txt").write_text("one two")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.txt").write_text("1 2 3")
    return CondorOptions(send=(str(tmp_path / "words.txt"), str(tmp_path / "data")))


def test_what_becomes_of_the_originals_changes_nothing(
    directory: RunDirectory, options: CondorOptions, tmp_path: Path
) -> None:
    assert files_sent(options, directory) == list(options.send), "before there is a run"
    keep(options, directory)
    assert files_sent(options, directory) == [str(directory.root / FOLDER / name) for name in ("words.txt", "data")]
    assert news(options, directory) == []
    (tmp_path / "words.txt").write_text("other words")
    (tmp_path / "data" / "rows.txt").unlink()
    words, data = map(Path, files_sent(options, directory))
    assert (words.read_text(), (data / "rows.txt").read_text()) == ("one two", "1 2 3")
    (said,) = news(options, directory)
    assert said.startswith(f"{tmp_path}/words.txt, {tmp_path}/data of --send changed") and "--with-changes" in said


def test_what_is_there_now_is_taken_when_it_is_asked_for(
    directory: RunDirectory, options: CondorOptions, tmp_path: Path
) -> None:
    keep(options, directory)
    (tmp_path / "words.txt").write_text("other words")
    keep(options, directory)
    assert Path(files_sent(options, directory)[0]).read_text() == "other words" and news(options, directory) == []
    (tmp_path / "words.txt").unlink()
    with pytest.raises(UsageError, match="is not there"):
        keep(options, directory)
    assert Path(files_sent(options, directory)[0]).read_text() == "other words", "the copies are as they were"


def test_a_large_file_has_a_second_name_and_that_is_said(
    directory: RunDirectory, options: CondorOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_description, "LARGE", 5)
    monkeypatch.setattr(submit_description, "_FICLONE", 0)  # as on a disk that cannot share blocks
    keep(options, directory)
    words, data = map(Path, files_sent(options, directory))
    assert os.path.samefile(words, tmp_path / "words.txt")
    assert not os.path.samefile(data / "rows.txt", tmp_path / "data" / "rows.txt"), "it is small"
    (said,) = news(options, directory)
    assert said.startswith(f"{tmp_path}/words.txt of --send: too large to copy")
    (tmp_path / "words.txt").unlink()
    (tmp_path / "words.txt").write_text("replaced")
    assert Path(files_sent(options, directory)[0]).read_text() == "one two"


def test_a_url_is_fetched_where_the_job_runs(directory: RunDirectory) -> None:
    options = CondorOptions(send=("osdf:///ospool/images/words.txt",))
    keep(options, directory)
    assert files_sent(options, directory) == ["osdf:///ospool/images/words.txt"]
    assert not (directory.root / FOLDER).exists() and news(options, directory) == []


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """Regression: the second file was written into the first, which may be a hard link to the original."""
    files = [tmp_path / folder / "rows.npy" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("rows")
    with pytest.raises(UsageError, match="another file of the same name"):
        check(CondorOptions(send=tuple(map(str, files))), tmp_path / "program.py")


def test_a_copy_is_never_written_over_what_is_there(
    tmp_path: Path, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_description, "LARGE", 0)
    original = tmp_path / "rows.npy"
    original.write_text("rows")
    options = CondorOptions(send=(str(original), str(original)))
    with contextlib.suppress(StorageError):
        keep(options, directory)
    assert original.read_text() == "rows"
