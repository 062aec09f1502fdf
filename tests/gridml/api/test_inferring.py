"""What a run of stages trained, as arrays by name, and what it says of new vertices."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gridml
from gridml.errors import LedgerError, NotFiniteError, ProgramError, UsageError
from gridml.model.loading import load as load_program
from master.store.rundir import RunDirectory
from tests.support.stage_programs import module_in

PROGRAMS = Path(__file__).parents[2] / "programs"
COSTS = "t_x=0.01,t_s=1,push=0.1"


def trained(program: Path, root: Path) -> gridml.Run:
    return gridml.simulate(program, workers=2, cost=COSTS, push_every=32, run_dir=root, epochs=3)


@pytest.fixture(scope="module")
def factors(tmp_path_factory: pytest.TempPathFactory) -> gridml.Run:
    return trained(PROGRAMS / "factors.py", tmp_path_factory.mktemp("factors") / "run")


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> gridml.Run:
    """A run of topics whose words and texts have ids of their own."""
    folder = tmp_path_factory.mktemp("topics")
    text = (PROGRAMS / "topics.py").read_text()
    named = text.replace(
        "g.add(Word, count=count)", "g.add(Word, ids=[f'word {w}' for w in range(WORDS)], count=count)"
    )
    named = named.replace("g.add(Text, ", "g.add(Text, ids=np.arange(TEXTS) * 10, ")
    assert named.count("ids=") == 2
    (folder / "named.py").write_text(named)
    return trained(folder / "named.py", folder / "run")


def test_users_and_items_are_arrays_by_name(factors: gridml.Run) -> None:
    found, module = gridml.load(factors), module_in(PROGRAMS / "factors.py")
    assert found["User.p"].shape == (module.USERS, module.RANK)
    assert set(found["User.visits"].tolist()) == {3 * module.RATED}
    item, rating = module.ratings()
    guess = found["Shared.mean"][0] + np.einsum("ur,uir->ui", found["User.p"], found["Item.q"][item])
    assert np.sqrt(np.square(guess - rating).mean()) == pytest.approx(factors.metrics()[-1]["rmse"], rel=1e-5)
    assert "User.p" not in gridml.load(factors, "e1")  # a run keeps local fields as they are now


def test_topics_of_edges_and_the_ids_of_vertices_come_with_them(topics: gridml.Run) -> None:
    found, module = gridml.load(topics), module_in(PROGRAMS / "topics.py")
    word = module.tokens()[1]
    count = np.zeros_like(found["Word.count"])
    np.add.at(count, (word, found["Text.words.topic"]), 1)
    np.testing.assert_array_equal(count, found["Word.count"])
    assert found["Word.ids"].tolist() == [f"word {w}" for w in range(module.WORDS)]
    assert found["Text.ids"].tolist() == list(range(0, 10 * module.TEXTS, 10))
    np.testing.assert_array_equal(gridml.load(topics, "e1")["Word.ids"], found["Word.ids"])


def test_what_was_loaded_begins_another_run(topics: gridml.Run, tmp_path: Path) -> None:
    """Local fields and ids are left out: they are those of the new run's graph."""
    found, program = gridml.load(topics), topics.settings()["program"]
    run = gridml.simulate(program, workers=1, cost=COSTS, run_dir=tmp_path / "run", epochs=1, init_from=found)
    facts = run.events("first values")[0].facts
    assert facts["taken"] == facts["tensors"] == 3
    assert gridml.load(run)["Word.count"].sum() == found["Word.count"].sum()


def damaged(path: Path) -> Any:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["ids.safetensors", "fields/User.p@*.npy", "missing"])
def test_a_damaged_file_is_told(tmp_path: Path, name: str) -> None:
    text = (PROGRAMS / "factors.py").read_text().replace("g.add(User, ", "g.add(User, ids=np.arange(USERS), ")
    (tmp_path / "named.py").write_text(text)
    run = trained(tmp_path / "named.py", tmp_path / "run")
    if name == "missing":
        RunDirectory(run.run_dir).ids.unlink()
    else:
        (path,) = run.run_dir.glob(name)
        damaged(path)
    with pytest.raises(LedgerError, match=r"is damaged|is gone"):
        gridml.load(run)


def new_users(module: ModuleType, users: int = 20) -> dict[str, Any]:
    """Users who rated what the first users of the run did, with other factors to begin with."""
    item, rating = module.ratings()
    offsets = np.arange(users + 1) * module.RATED
    rated = gridml.csr(offsets, item[:users].ravel(), rating[:users].ravel())
    return {"User": {"p": 0, "visits": 0, "rated": rated, "ids": [f"u{n}" for n in range(users)]}}


def plain_loop(module: ModuleType, found: dict[str, Any], rate: float, passes: int) -> np.ndarray:
    item, rating = module.ratings()
    q, p = found["Item.q"], np.zeros((20, module.RANK), np.float32)
    for _ in range(passes):
        for u in range(20):
            for i, r in zip(item[u], rating[u], strict=True):
                error = np.float32(r) - found["Shared.mean"][0] - p[u] @ q[i]
                p[u] += np.float32(rate) * (error * q[i] - np.float32(module.RIDGE) * p[u])
    return p


def test_a_new_user_is_a_plain_loop_with_the_items_fixed(factors: gridml.Run) -> None:
    module = module_in(PROGRAMS / "factors.py")
    before = gridml.load(factors)
    new = {**new_users(module), "Shared": {"rate": 0.05}}
    found = gridml.infer(factors, new, passes=6)
    np.testing.assert_allclose(found["User.p"], plain_loop(module, before, 0.05, 6), atol=1e-4)
    assert found["User.visits"].tolist() == [6 * module.RATED] * 20
    assert found["User.ids"].tolist() == [f"u{n}" for n in range(20)]
    assert found.keys() == {"User.p", "User.visits", "User.ids"}
    after = gridml.load(factors)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_new_user_does_not_depend_on_the_other_new_users(factors: gridml.Run) -> None:
    module = module_in(PROGRAMS / "factors.py")
    many, few = (gridml.infer(factors, new_users(module, users), passes=2)["User.p"] for users in (20, 3))
    np.testing.assert_array_equal(many[:3], few)


def test_earlier_replicas_infer_too(factors: gridml.Run) -> None:
    new = new_users(module_in(PROGRAMS / "factors.py"))
    first, last = (gridml.infer(factors, new, passes=2, which=which)["User.p"] for which in ("e1", "final"))
    assert not np.array_equal(first, last)
    np.testing.assert_array_equal(first, gridml.infer(f"{factors.run_dir}:e1", new, passes=2)["User.p"])


def test_the_topics_of_a_new_text(topics: gridml.Run) -> None:
    """Texts with the words of texts of the run, named by their ids, are about what these are about."""
    module, before = module_in(PROGRAMS / "topics.py"), gridml.load(topics)
    offsets, word = module.tokens()
    names = before["Word.ids"][word]
    words = gridml.csr(offsets, names, topic=0, visits=0)
    found = gridml.infer(topics, {"Text": {"words": words}}, passes=20)
    assert found.keys() == {"Text.words.topic", "Text.words.visits"}
    assert set(found["Text.words.visits"].tolist()) == {20}
    share = (before["Word.count"] + module.BETA) / (before["Corpus.count"] + module.BETA * module.WORDS)
    drawn, zero = (np.log(share[word, topic]).mean() for topic in (found["Text.words.topic"], np.zeros(len(word), int)))
    assert drawn > zero + 1
    again = gridml.infer(topics, {"Text": {"words": words}}, passes=20)
    np.testing.assert_array_equal(found["Text.words.topic"], again["Text.words.topic"])


def one_user(*csr: Any) -> dict[str, Any]:
    return {"User": {"p": 0, "visits": 0, "rated": gridml.csr(*csr)}}


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({}, "got no User vertices"),
        ({"Item": {"q": 0}}, "got Item; expected User, the type that the stages look at, and contexts .*: Shared"),
        ({"User": {"p": 0}}, r"graph\.add\(User, \.\.\.\) misses \['rated', 'visits'\]"),
        (one_user([0, 1], [60], [1.0]), "edge to Item 60, but there are 60"),
        (one_user([0, 1], [0], [np.nan]), "values that are not finite: User"),
        (one_user([0, 1], ["x"], [1.0]), "Item vertices have no texts as"),
        (one_user([0], [], []), "the graph has no User vertices"),
    ],
    ids=["nothing", "replicated", "missing", "no such item", "nan", "no ids", "empty"],
)
def test_what_does_not_fit(factors: gridml.Run, new: dict[str, Any], said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        gridml.infer(factors, new, passes=1)


def test_too_high_a_rate_is_told(factors: gridml.Run) -> None:
    new = {**new_users(module_in(PROGRAMS / "factors.py")), "Shared": {"rate": 100}}
    with pytest.raises(NotFiniteError, match=r"User\.p 0 is NaN or infinite after 50 passes\. Lower the rate"):
        gridml.infer(factors, new, passes=50)


def test_an_unknown_word_is_named(topics: gridml.Run) -> None:
    words = gridml.csr([0, 2], ["word 3", "wrod 4"], topic=0, visits=0)
    with pytest.raises(ProgramError, match=r"Text\.words leads to Word 'wrod 4', an id that none of the 50 Word vert"):
        gridml.infer(topics, {"Text": {"words": words}}, passes=1)


def test_a_program_with_f_has_no_stages(tmp_path: Path) -> None:
    run = gridml.simulate(PROGRAMS / "tally.py", workers=1, cost=COSTS, run_dir=tmp_path / "run")
    assert load_program(PROGRAMS / "tally.py").shape
    with pytest.raises(ProgramError, match=r"gridml\.infer runs compiled stages, and the program has .*, an f"):
        gridml.infer(run, {}, passes=1)
    with pytest.raises(UsageError, match="got passes=0; expected a whole number"):
        gridml.infer(run, {}, passes=0)


@pytest.mark.parametrize(("name", "of"), [("ranks", "Page"), ("blocks", "Feature")])
def test_a_program_that_looks_at_all_vertices_together_infers_nothing(tmp_path: Path, name: str, of: str) -> None:
    run = gridml.simulate(PROGRAMS / f"{name}.py", workers=1, cost=COSTS, run_dir=tmp_path / "run", epochs=1)
    with pytest.raises(ProgramError, match=f"look at all of {of} together; run gridml.compute on a graph"):
        gridml.infer(run, {}, passes=1)
