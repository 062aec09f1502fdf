"""`gridml place`: its files and output, and one message for every mistake."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridml.placement import auto
from gridml.placement.auto import METHODS
from gridml.placement.base import Placement
from gridml.placement.files.registry import FORMATS, read
from gridml.placement.quality import traffic

Answer = tuple[int, str, str]
COMMAND = "place"  # that the fixture `gridml` calls
SOURCE = Path(auto.__file__).parents[1]
WRITTEN = ["quality.json", "u_part.npy", "v_part.npy"]


@pytest.fixture
def graph(tmp_path: Path) -> str:
    """Documents of ten subjects, each with its own words and some common ones."""
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(2000):
        own = rng.choice(200, 12, replace=False) + 200 * rng.integers(10)
        words = np.sort(np.concatenate([own, 2000 + rng.choice(100, 3, replace=False)])) + 1
        lines.append("1 " + " ".join(f"{word}:1" for word in words))
    (tmp_path / "words.svm.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return "words.svm.gz"


def test_help_shows_an_example_and_every_format(gridml: Callable[..., Answer]) -> None:
    status, out, _ = gridml("--help")
    text = " ".join(out.replace("│", " ").split())
    assert status == 0 and "Example: gridml place ratings.tsv.gz -k 16 --out placed" in text
    for form in FORMATS.values():
        assert form.name in text and form.endings[0] in text
    assert "u_part.npy" in text and "quality.json" in text and "a random placement" in text


def test_what_is_written_and_said_for_programs(gridml: Callable[..., Answer], graph: str, tmp_path: Path) -> None:
    status, out, err = gridml(graph, "-k", "10", "--out", "placed", "--json")
    assert status == 0 and err == ""
    said = json.loads(out)
    assert said == json.loads((tmp_path / "placed" / "quality.json").read_text())
    assert sorted(path.name for path in (tmp_path / "placed").iterdir()) == WRITTEN
    rows, columns = (np.load(tmp_path / "placed" / name) for name in WRITTEN[1:])
    assert rows.dtype == columns.dtype == np.int32
    counted = traffic(read(tmp_path / graph), Placement(10, rows, columns, ""))
    assert (said["M_max"], said["T_max"], said["T_sum"]) == (
        counted.largest_memory,
        counted.largest_traffic,
        counted.total_traffic,
    )
    assert min(said[f"{name}_improvement"] for name in ("M_max", "T_max", "T_sum")) > 100
    assert (said["rows"], said["columns"], said["parts"]) == (2000, 2100, 10)
    assert said["edges"] == 30_000 and said["balance"] <= 1.005 and said["method"] == "auto"
    assert "multilevel, " in said["why"]
    assert {"why", "seed", "seconds", "peak_mb"} <= said.keys()


def test_the_same_seed_gives_the_same_parts(gridml: Callable[..., Answer], graph: str, tmp_path: Path) -> None:
    found = []
    for seed in ("1", "1", "2"):
        assert gridml(graph, "-k", "4", "--out", "placed", "--seed", seed, "--method", "random")[0] == 0
        found.append((tmp_path / "placed" / "u_part.npy").read_bytes())
    assert found[0] == found[1] != found[2]


def test_the_answer_for_a_person_and_a_plot(gridml: Callable[..., Answer], graph: str, tmp_path: Path) -> None:
    status, out, err = gridml(graph, "-k", "10", "--out", "placed", "--plot", "placed.svg")
    assert status == 0 and err == ""  # progress is for terminals
    text = " ".join(out.split())
    said = json.loads((tmp_path / "placed" / "quality.json").read_text())
    assert "2,000 rows, 2,100 columns, 30,000 edges" in text and "auto random improvement" in text
    for name, title in (("M_max", "largest memory"), ("T_max", "largest traffic"), ("T_sum", "total traffic")):
        placed, chance, better = (said[f"{name}{end}"] for end in ("", "_random", "_improvement"))
        assert f"{title} {placed:,} {chance:,} {better:.1f}%" in text
    assert f"balance {said['balance']:.3f} 1.000" in text and " s, " in text
    assert (tmp_path / "placed.svg").stat().st_size > 1000


def test_weights_shares_and_rates_are_counted(gridml: Callable[..., Answer], graph: str, tmp_path: Path) -> None:
    sizes = np.random.default_rng(0).integers(1, 1000, 2100)
    np.save(tmp_path / "bytes.npy", sizes)
    asked = ("--shares", "2,1,1", "--row-weights", "edges", "--column-weights", "bytes.npy", "--topology", "star")
    asked += ("--objective", "seconds", "--bandwidth", "1e6,2e6,1e6", "--speed", "1e5", "--master-bandwidth", "4e6")
    status, out, err = gridml(graph, "-k", "3", "--out", "placed", "--method", "refined", "--json", *asked)
    assert status == 0 and err == ""
    said = json.loads(out)
    rows, columns = (np.load(tmp_path / "placed" / name) for name in WRITTEN[1:])
    given = read(tmp_path / graph)
    counted = traffic(given.weighted(given.degrees, sizes), Placement(3, rows, columns, ""), "star")
    assert (said["M_max"], said["T_max"]) == (counted.largest_memory, counted.largest_memory)
    assert said["T_sum"] == counted.touched.sum()
    sending = np.maximum(counted.touched / np.array([1e6, 2e6, 1e6]), counted.touched.sum() / 4e6)
    assert said["round_s"] == pytest.approx((2 * sending + counted.work / 1e5).max())
    assert said["round_s_improvement"] > 0 and said["balance"] < 1.01
    assert (said["objective"], said["topology"], said["shares"]) == ("seconds", "star", [2, 1, 1])
    assert (said["row_weights"], said["column_weights"], said["memory_limit"]) == (True, True, None)
    assert said["rates"] == {"bandwidth": [1e6, 2e6, 1e6], "speed": [1e5], "master": 4e6}
    status, out, _ = gridml(graph, "-k", "3", "--out", "placed", "--method", "greedy", *asked[:8])
    assert status == 0 and "weights of columns that a part touches" in out and "a star" in " ".join(out.split())
    status, out, _ = gridml(graph, "-k", "3", "--out", "placed", "--method", "tsh", "--objective", "duan")
    assert status == 0 and "work × traffic" in out and "seconds a round" not in out


@pytest.mark.real
def test_words_of_real_text_are_placed_better_than_at_random(tmp_path: Path) -> None:
    """Place gridml's own source, with lines as rows and words as columns, in a process in which warnings are errors."""
    lines = [re.findall(r"\w+", line) for file in sorted(SOURCE.rglob("*.py")) for line in file.read_text().split("\n")]
    rows = [set(words) for words in lines if len(words) > 3]
    numbers = {word: i for i, word in enumerate(sorted(set().union(*rows)))}
    edges = [f"{17 * row},{numbers[word] - 100}" for row, words in enumerate(rows) for word in sorted(words)]
    (tmp_path / "source.csv").write_text("# line,word\n" + "\n".join(edges))
    script = "from gridml.cli import main as cli; cli.main()"
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        script,
        "place",
        "source.csv",
        "-k",
        "16",
        "--out",
        "placed",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["rows"], said["columns"], said["edges"]) == (len(rows), len(numbers), len(edges))
    assert said["T_max_improvement"] > 50 and said["T_sum_improvement"] > 50 and said["M_max_improvement"] > 10
    assert len(np.load(tmp_path / "placed" / "u_part.npy")) == len(rows)


def test_a_graph_that_has_grown_and_other_numbers_of_parts(
    gridml: Callable[..., Answer], graph: str, tmp_path: Path
) -> None:
    text = gzip.decompress((tmp_path / graph).read_bytes())
    (tmp_path / "some.svm").write_bytes(b"\n".join(text.split(b"\n")[:1500]))
    assert gridml("some.svm", "-k", "10", "--out", "placed")[0] == 0
    was = np.load(tmp_path / "placed" / "u_part.npy")
    status, out, err = gridml(graph, "-k", "10", "--from", "placed", "--out", "placed", "--json")
    said = json.loads(out)
    assert status == 0 and err == "" and said == json.loads((tmp_path / "placed" / "quality.json").read_text())
    assert np.array_equal(np.load(tmp_path / "placed" / "u_part.npy")[:1500], was)
    assert (said["method"], said["rows_before"], said["rows_moved"], said["columns_moved"]) == ("again", 1500, 0, 0)
    assert "0 of 1,500 rows" in said["why"] and said["balance"] <= 1.01
    assert min(said[f"{name}_improvement"] for name in ("M_max", "T_max", "T_sum")) > 100
    for parts, must in (("8", 0.2), ("11", 0.09)):
        status, out, err = gridml(graph, "-k", parts, "--from", "placed", "--out", "other", "--json")
        assert status == 0 and must < json.loads(out)["rows_moved"] / 2000 < must + 0.1
    assert gridml(graph, "-k", "10", "--from", "placed", "--out", "other", "--move-cost", "0")[0] == 0
    asked = ("--shares", "2,1,1,1,1,1,1,1,1,1", "--row-weights", "edges")
    status, out, _ = gridml(graph, "-k", "10", "--from", "placed", "--out", "other", "--json", *asked)
    assert status == 0 and 0.05 < json.loads(out)["rows_moved"] / 2000 < 0.2
    for lost, parts, says in (
        ("3,x", "8", "the lost parts are '3,x'; expected numbers, such as 3,7"),
        ("3", "10", "10 parts without 1 are 9; expected -k to be at most that, got 10"),
        ("10", "9", "the lost parts are 10; expected different numbers of 0 to 9"),
    ):
        status, _, err = gridml(graph, "-k", parts, "--from", "placed", "--lost", lost, "--out", "other")
        assert status == 2 and says in err
    status, out, _ = gridml(graph, "-k", "8", "--from", "placed", "--lost", "3, 0", "--out", "other", "--json")
    was = np.load(tmp_path / "placed" / "u_part.npy")
    assert json.loads(out)["rows_lost"] == np.isin(was, (0, 3)).sum()
    assert (np.load(tmp_path / "other" / "u_part.npy")[was == 1] == 0).mean() > 0.9


def test_rows_of_a_general_graph(gridml: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "ring.txt").write_text("".join(f"{10 * i} {10 * ((i + 1) % 40)}\n" for i in range(40)))
    for kind, rows, files in (
        ("vertices", 40, ["quality.json", "u_ids.npy", "u_part.npy", "v_ids.npy", "v_part.npy"]),
        ("edges", 40, ["graph.npz", "quality.json", "u_part.npy", "v_ids.npy", "v_part.npy"]),
        ("cliques", 40, ["graph.npz", "quality.json", "u_part.npy", "v_ids.npy", "v_part.npy"]),
    ):
        status, out, _ = gridml("ring.txt", "-k", "4", "--as", kind, "--out", kind, "--json")
        assert status == 0 and (json.loads(out)["rows"], json.loads(out)["columns"]) == (rows, 40)
        assert sorted(path.name for path in (tmp_path / kind).iterdir()) == files
        assert np.load(tmp_path / kind / "v_ids.npy").tolist() == list(range(0, 400, 10))
    (tmp_path / "ring.txt").write_text((tmp_path / "ring.txt").read_text() + "5 0\n")  # a vertex between the others
    again = ("ring.txt", "-k", "4", "--out", "again", "--as")
    assert gridml(*again, "vertices", "--from", "vertices")[0] == 0
    was, now = (np.load(tmp_path / name / "u_part.npy").tolist() for name in ("vertices", "again"))
    assert now[:1] + now[2:] == was
    assert "they cannot be matched" in gridml(*again, "edges", "--from", "edges")[2]
    made = read(tmp_path / "edges" / "graph.npz")
    assert made.neighbours[:4].tolist() == [0, 1, 0, 39], "edges by their smaller end, then by the other"


def test_vertices_of_one_type_have_ghosts(gridml: Callable[..., Answer], tmp_path: Path) -> None:
    names = np.random.default_rng(0).permutation(40)
    links = "".join(f"{names[i]} {names[(i + 1) % 40]}\n" for i in range(40))
    (tmp_path / "ring.txt").write_text(links)
    status, out, _ = gridml("ring.txt", "-k", "4", "--as", "vertices", "--out", "placed", "--json")
    found, part = json.loads(out), np.load(tmp_path / "placed" / "u_part.npy")
    around = [{int(names[(i - 1) % 40]), int(names[(i + 1) % 40])} for i in np.argsort(names)]

    def ghosts(labels: Any) -> list[int]:
        of = [{*np.flatnonzero(labels == p).tolist()} for p in range(4)]
        return [len(set().union(*(around[v] for v in own)) - own) for own in of]

    placed, in_order = ghosts(part), ghosts(np.arange(40) // 10)
    assert status == 0 and (found["G_max"], found["G_sum"]) == (max(placed), sum(placed))
    assert (found["G_max_order"], found["G_sum_order"]) == (max(in_order), sum(in_order))
    assert found["G_sum"] < found["G_sum_random"] and found["M_max"] <= 10 + found["G_max"]
    status, out, _ = gridml("ring.txt", "-k", "4", "--as", "vertices", "--out", "again")
    assert status == 0 and "most ghosts" in out and "in order" in out and "traffic" not in out
    status, out, _ = gridml("ring.txt", "-k", "4", "--as", "edges", "--out", "edges")
    assert status == 0 and "ghosts" not in out and "total traffic" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("few.txt", "-k", "2", "--as", "nodes"),
            "few.txt: the kind of rows is 'nodes'; expected bipartite, vertices",
        ),
        (("few.txt", "-k", "2", "--move-cost", "1"), "got --move-cost or --lost without --from"),
        (("few.txt", "-k", "2", "--from", "full", "--seconds", "1"), "got --from with --method or --seconds"),
        (("few.txt", "-k", "2", "--from", "full", "--move-cost", "-1"), "a move costs -1.0 mean rows' columns"),
        (("few.txt", "-k", "2", "--from", "full"), "full/quality.json cannot be read: No such file or directory. Name"),
        (("nowhere.svm", "-k", "2"), "nowhere.svm cannot be read: No such file or directory"),
        (("words", "-k", "2"), "words: the ending of its name is no known format; expected one of libsvm (.svm"),
        (("short.txt", "-k", "2"), "short.txt, line 3: got 'x'; expected two whole numbers"),
        (("short.txt", "-k", "2", "--format", "xml"), "no format 'xml'; expected libsvm"),
        (("few.txt", "-k", "3"), "2 rows cannot be placed on 3 parts; expected 1 to 2. Ask for no more"),
        (("few.txt", "-k", "0"), "-k is 0; expected at least 1"),
        (("few.txt", "-k", "2", "--seed", "-1"), "--seed is -1; expected at least 0"),
        (("few.txt", "-k", "2", "--slack", "-0.5"), "slack of the parts is -0.5"),
        (("few.txt", "-k", "2", "--shares", "1"), "got 1 shares for 2 parts; expected 2"),
        (("few.txt", "-k", "2", "--shares", "1,x"), "--shares is '1,x'; expected comma-separated numbers"),
        (("few.txt", "-k", "2", "--shares", "0,0"), "the shares of the parts are 0, 0; expected numbers above 0"),
        (("few.txt", "-k", "2", "--row-weights", "edge.npy"), "edge.npy cannot be read: No such file or directory"),
        (("few.txt", "-k", "2", "--row-weights", "odd.npy"), "the weight of row 1 is nan; expected a whole number"),
        (("few.txt", "-k", "2", "--column-weights", "odd.npy"), "got 2 column weights (float64); expected 1 numbers"),
        (("few.txt", "-k", "2", "--column-weights", "short.txt"), "short.txt is no .npy of numbers"),
        (("few.txt", "-k", "2", "--memory-limit", "0"), "the memory limit is 0; expected at least 1"),
        (
            ("few.txt", "-k", "2", "--memory-limit", "9", "--method", "parsa"),
            "parsa takes no account of a memory limit",
        ),
        (("few.txt", "-k", "2", "--topology", "ring"), "the topology is 'ring'; expected mesh, star"),
        (("few.txt", "-k", "2", "--objective", "seconds"), "Give --bandwidth"),
        (("few.txt", "-k", "2", "--bandwidth", "1,-1"), "the bandwidth is 1, -1; expected numbers above 0"),
        (("few.txt", "-k", "2", "--bandwidth", "1,1,1"), "got 3 numbers of the bandwidth for 2 parts"),
        (("few.txt", "-k", "2", "--speed", "1"), "got --speed without --bandwidth"),
        (("few.txt", "-k", "2", "--bandwidth", "1", "--master-bandwidth", "1"), "which has no master"),
        (("few.txt", "-k", "2", "--method", "?"), f"'?'; expected {', '.join(METHODS)}."),
        (("few.txt", "-k", "2", "--plot", "a.xyz"), "a.xyz cannot be written: its name says no format"),
        (("few.txt", "-k", "2", "--out", "full"), "full holds mine already; expected an empty folder"),
    ],
)
def test_a_mistake_gets_one_message(
    gridml: Callable[..., Answer], tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "short.txt").write_text("# u v\n1 2\n1 x")
    (tmp_path / "few.txt").write_text("1 2\n5 2\n")
    np.save(tmp_path / "odd.npy", [1, np.nan])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    out_folder = () if "--out" in arguments else ("--out", "placed")
    status, out, err = gridml(*arguments, *out_folder)
    assert status == 2 and says in err and out == ""
    assert err.startswith("Error: ") and "Traceback" not in err and len(err.strip().splitlines()) == 1
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    assert not (tmp_path / "placed").exists() or "--plot" in arguments


def test_a_graph_too_large_for_memory(
    gridml: Callable[..., Answer], graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(*_: object) -> Placement:
        raise MemoryError("Unable to allocate 16.0 GiB")

    monkeypatch.setattr("gridml.placement.multilevel.Multilevel.place", place)
    status, out, err = gridml(graph, "-k", "4", "--out", "placed", "--json")
    assert status == 2 and "words.svm.gz does not fit into memory: Unable to allocate 16.0 GiB" in err
    assert json.loads(out)["exit_status"] == 2


def test_a_graph_that_stays_in_a_file(gridml: Callable[..., Answer], graph: str, tmp_path: Path) -> None:
    status, out, err = gridml(graph, "-k", "4", "--out", "placed", "--store", "words.csr", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["why"].startswith("parsa, ") and json.loads(out)["rows"] == 2000
    parts = (tmp_path / "placed" / "u_part.npy").read_bytes()
    assert gridml("words.csr", "-k", "4", "--out", "again")[0] == 0
    assert (tmp_path / "again" / "u_part.npy").read_bytes() == parts
    status, _, err = gridml(graph, "-k", "4", "--out", "placed", "--store", "words.csr")
    assert status == 2 and "words.csr exists already" in err
