"""A prepared run that is submitted by something else, such as a DAG; and attributes that reach every job."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridml.errors import UsageError
from pools import pool, submitted
from pools.pool import Pool, wait_until
from pools.release import NoCondor
from pools.submitted import LIMIT_S, WORKERS, Submitted

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
LICENCES = 2


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool with a core for each worker, but fewer licences."""
    try:
        with pool.personal(
            tmp_path_factory.mktemp("limited"), cpus=WORKERS, more=f"LICENCE_LIMIT = {LICENCES}\n"
        ) as up:
            yield up
    except NoCondor as why:
        pytest.skip(str(why))


def ads(run: Submitted, constraint: str, *names: str) -> list[dict[str, object]]:
    """Return attributes of jobs from the queue."""
    said = run.pool.tool("condor_q", "-constraint", constraint, "-json", "-attributes", ",".join(names)).stdout
    found: list[dict[str, object]] = json.loads(said or "[]")
    return found


def test_attributes_reach_the_ads_of_all_jobs_and_the_pool_keeps_to_them(limited: Pool, tmp_path: Path) -> None:
    asked = {
        "AccountingGroup": "group_physics.me",
        "ConcurrencyLimits": "licence",
        "JobPrio": 7,
        "AllowedExecuteDuration": 36_000,
    }
    options = [f"--attribute={name}={json.dumps(value)}" for name, value in asked.items()]
    run = Submitted(limited, tmp_path / "run", "--project", "MyLab", *options)
    run.under_way()
    run.wait(lambda _: len(run.jobs()) == LICENCES, "as many to run as there are licences")
    jobs = ads(run, f'GridmlRun =?= "{run.root}"', "JobStatus", "ProjectName", *asked)
    wanted = {**asked, "ProjectName": "MyLab"}
    assert len(jobs) == WORKERS
    assert all({name: ad.get(name) for name in wanted} == wanted for ad in jobs)
    assert sorted(ad["JobStatus"] for ad in jobs) == [1] + [2] * LICENCES  # type: ignore[type-var]
    (master,) = ads(run, f"ClusterId == {run.master_job}", *wanted)
    assert {name: master.get(name) for name in wanted} == wanted
    assert "group_physics.me@" in limited.tool("condor_userprio", "-all").stdout
    run.exact()


class Prepared(Submitted):
    """A run that is created but not submitted."""

    def __init__(self, pool: Pool, root: Path) -> None:
        self.said: dict[str, str] = {}
        super().__init__(pool, root, "--prepare")

    def gridml(self, *arguments: str) -> str:
        said = super().gridml(*arguments)
        if arguments[0] == "submit":
            self.said = json.loads(said)
            return json.dumps({"master_job": None})
        return said


def test_a_prepared_run_is_a_node_of_a_dag(condor_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CONDOR_DAGMAN_USE_STRICT", "0")  # otherwise it rejects a DAG in /tmp
    run = Prepared(condor_pool, tmp_path / "run")
    assert Path(run.said["prepared"]) == run.root / "master.sub"
    assert (run.status()["status"], run.jobs(1), run.jobs(2)) == ("submitted", [], [])
    keep = tmp_path / "keep.sub"
    keep.write_text(
        f"universe = local\nexecutable = /bin/cp\narguments = {run.root}/final.safetensors {tmp_path}/kept\n"
        f"log = {tmp_path}/keep.log\nqueue\n"
    )
    dag = tmp_path / "train.dag"
    dag.write_text(f"JOB train {run.root}/master.sub\nJOB keep {keep}\nPARENT train CHILD keep\n")
    done = condor_pool.tool("condor_submit_dag", str(dag))
    assert done.returncode == 0, done.stderr
    run.exact()
    log = tmp_path / "train.dag.dagman.out"
    wait_until(lambda: "EXITING WITH STATUS" in log.read_text(), LIMIT_S, "the DAG did not end")
    assert "EXITING WITH STATUS 0" in log.read_text()
    assert (tmp_path / "kept").read_bytes() == (run.root / "final.safetensors").read_bytes()


def test_a_prepared_run_that_is_held_says_so_and_is_cancelled(condor_pool: Pool, tmp_path: Path) -> None:
    run = Prepared(condor_pool, tmp_path / "run")
    done = condor_pool.tool("condor_submit", "-terse", "-append", "hold = True", run.said["prepared"])
    assert done.returncode == 0, done.stderr
    job = int(done.stdout.split(".")[0])
    held = run.status()["master_job"]
    assert isinstance(held, dict) and (held["job"], held["state"]) == (job, "held")
    assert f"its job {job}" in run.gridml("cancel", str(run.root))
    assert run.status()["status"] == "cancelled"
    assert not ads(run, f"ClusterId == {job} && JobStatus =!= 3", "ClusterId")


def test_a_file_that_is_named_by_a_url_is_fetched_by_every_job(
    condor_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a file from a cache of the OSDF, here by the http plugin."""
    asked: list[str] = []

    class Cache(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"one word")

        def log_message(self, *of: object) -> None:
            pass

    program = tmp_path / "reads.py"
    text, reads = submitted.PROGRAM.read_text(), '    assert open("words-v1.txt").read() == "one word"\n'
    head, f = text.split("@gridml.update", 1)
    signature, body = f.split("-> None:\n", 1)
    program.write_text(f"{head}@gridml.update{signature}-> None:\n{reads}{body}")
    monkeypatch.setattr(submitted, "PROGRAM", program)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cache) as cache:
        threading.Thread(target=cache.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{cache.server_port}/words-v1.txt"
        Submitted(condor_pool, tmp_path / "run", "--send", url).exact()
        cache.shutdown()
    assert len(asked) >= WORKERS and {*asked} == {"/words-v1.txt"}


def test_what_is_prepared_has_no_master_in_this_terminal(condor_pool: Pool, programs: Path, tmp_path: Path) -> None:
    run = Prepared(condor_pool, tmp_path / "run")
    done: subprocess.CompletedProcess[str] = run.tried(
        "submit", str(programs / "slow_count.py"), "--prepare", "--foreground", "--run-dir", str(tmp_path / "other")
    )
    assert done.returncode == UsageError.exit_status
    assert "expected only one" in done.stderr and not (tmp_path / "other").exists()
