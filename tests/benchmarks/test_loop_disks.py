"""Disks in files and in memory are removed when their process ends, in any way."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.loop_disks import NoDisks, disk, small_disk

LIMIT_S = 60
MAKERS = {
    "in memory": "small_disk(1, Path(sys.argv[1]) / 'disk')",
    "lasting": "disk(Path(sys.argv[1]) / 'disk', volatile=False)",
    "volatile": "disk(Path(sys.argv[1]) / 'disk', volatile=True)",
}
HOLDER = """
import signal, sys
from pathlib import Path
from benchmarks.loop_disks import disk, small_disk
signal.signal(signal.SIGINT, signal.default_int_handler)  # who is started in the background of a shell ignores it
with {}:
    print("made", flush=True)
    signal.pause()
"""


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if f" {folder}/" in line]


@pytest.mark.parametrize(
    ("maker", "number"),
    [
        *((MAKERS["in memory"], number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)),
        *((MAKERS[kind], signal.SIGTERM) for kind in ("lasting", "volatile")),
    ],
)
def test_who_is_asked_to_end_unmounts(tmp_path: Path, maker: str, number: signal.Signals) -> None:
    try:
        with small_disk(1, tmp_path / "try"):
            pass
        if "volatile" in maker:
            with disk(tmp_path / "try", volatile=True):
                pass
    except NoDisks as error:
        pytest.skip(str(error))
    command = [sys.executable, "-c", HOLDER.format(maker), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "made\n"
        assert mounts_below(tmp_path)
        try:
            holder.send_signal(number)
            holder.wait(LIMIT_S)
        finally:
            holder.kill()
    assert not mounts_below(tmp_path) and not (tmp_path / "disk").exists()
