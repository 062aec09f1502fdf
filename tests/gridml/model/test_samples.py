"""Samples of vertices in evaluate: which ones, what they bring, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import gridml
from gridml.errors import ProgramError
from gridml.model.samples import Sample
from master.evaluation.metrics import evaluate, sampled, sampled_text
from master.store.versions import initial

RANKS = Path(__file__).parents[2] / "programs" / "ranks.py"


class Item(gridml.Vertex):
    q = gridml.array("float32")
    aggregate = gridml.stale_mean()


class User(gridml.Vertex):
    name = gridml.string()
    p = gridml.array("float32", mutable=True)
    rated = gridml.edge(Item, weight="float32")
    best = gridml.edge(Item)


@gridml.update(batch=2)
def train(users: gridml.Batch[User], rated: gridml.Batch[Item]) -> None:
    users.p += 1


def graph(users: int = 6) -> gridml.Graph:
    g = gridml.Graph()
    g.add(Item, q=np.arange(4))
    offsets = np.arange(users + 1) ** 2
    target = np.arange(offsets[-1]) % 4
    rated = gridml.csr(offsets, target, weight=np.arange(len(target)))
    g.add(
        User, name=[f"u{i}" for i in range(users)], p=np.arange(users), rated=rated, best=gridml.VertexSet(Item, 2, 3)
    )
    return g


Few = Annotated[gridml.Batch[User], gridml.sample(3, seed=5)]


def evaluated(evaluation: Any, g: gridml.Graph) -> Any:
    program = gridml.Program(lambda: g, train, evaluation)
    program.check()
    return evaluate(program, program.build(Path(__file__)), initial(g, 0), Path(__file__)), program


def test_a_sample_has_its_vertices_fields_and_edges() -> None:
    seen = {}

    def evaluation(users: Few, items: gridml.Batch[Item]) -> dict[str, float]:
        seen.update(ids=users.ids, p=users.p, name=users.name, rated=users.rated, best=users.best.index)
        return {"error": float((items.q[users.rated.index] - users.rated.weight).sum())}

    g = graph()
    evaluated(evaluation, g)
    ids = seen["ids"]
    assert ids.tolist() == Sample(3, 5).rows(6).tolist() and len(ids) == 3  # type: ignore[union-attr]
    assert seen["p"].tolist() == ids.tolist()
    assert seen["name"] == [f"u{i}" for i in ids]
    assert np.diff(seen["rated"].offsets).tolist() == [2 * i + 1 for i in ids]
    weight = np.concatenate([np.arange(i**2, (i + 1) ** 2) for i in ids])
    assert seen["rated"].weight.tolist() == weight.tolist()
    assert seen["rated"].index.tolist() == (weight % 4).tolist()  # numbers of items, positions in a Batch of all
    assert seen["best"].tolist() == [2] * 3


def test_a_batch_of_all_has_its_edges_too() -> None:
    def evaluation(users: gridml.Batch[User]) -> dict[str, float]:
        return {"edges": len(users.rated.index), "ends": users.best.index.sum(), "last": users.rated.offsets[-1]}

    assert evaluated(evaluation, graph())[0] == {"edges": 36, "ends": 12, "last": 36}


def test_every_epoch_draws_the_same_and_all_are_taken_where_there_are_no_more() -> None:
    first, again, other = Sample(10, 0).rows(1000), Sample(10, 0).rows(1000), Sample(10, 1).rows(1000)
    assert first is not None and again is not None and other is not None
    assert (first == again).all() and (np.diff(first) > 0).all() and (first != other).any()
    assert Sample(10, 0).rows(10) is None and Sample(10, 0).rows(3) is None

    def evaluation(users: Few) -> dict[str, float]:
        return {"count": len(users)}

    for users, count, said in ((6, 3, "3 of 6 users"), (3, 3, ""), (2, 2, "")):
        found, program = evaluated(evaluation, graph(users))
        assert found == {"count": count} and sampled_text(sampled(program, program.build(Path(__file__)))) == said


def test_a_mean_over_samples_is_that_of_all() -> None:
    values = np.arange(100.0)
    means = [values[Sample(20, seed).rows(100)].mean() for seed in range(400)]
    # The mean of 400 means of 20 of 0 to 99, without replacement, has a standard deviation of 0.29.
    assert abs(np.mean(means) - 49.5) < 4 * 0.29


def test_mistakes_say_what_was_expected() -> None:
    with pytest.raises(ProgramError, match=r"gridml.sample got count=0; expected a whole number from 1 on"):
        gridml.sample(0)
    with pytest.raises(ProgramError, match=r"gridml.sample got seed=-1; expected a whole number from 0 on"):
        gridml.sample(3, seed=-1)

    def of_one(user: Annotated[User, gridml.sample(3)]) -> dict[str, float]:
        return {}

    def of_progress(at: Annotated[gridml.Progress, gridml.sample(3)]) -> dict[str, float]:
        return {}

    for evaluation, named in ((of_one, "User"), (of_progress, "Progress")):
        with pytest.raises(ProgramError, match=rf"is a sample of {named}; expected one of a gridml.Batch, as in Anno"):
            evaluated(evaluation, graph())


def test_modules_are_not_sampled() -> None:
    torch = pytest.importorskip("torch")

    class Net(gridml.Vertex):
        model = gridml.module(lambda: torch.nn.Linear(1, 1), torch.optim.SGD)

    class Point(gridml.Vertex):
        x = gridml.array("float32", (1,))
        net = gridml.edge(Net)

    def fit(points: gridml.Batch[Point], net: Net) -> None:
        pass

    def evaluation(nets: Annotated[gridml.Batch[Net], gridml.sample(3)]) -> dict[str, float]:
        return {}

    evaluation.__annotations__ = {"nets": Annotated[gridml.Batch[Net], gridml.sample(3)]}
    fit.__annotations__ = {"points": gridml.Batch[Point], "net": Net, "return": None}
    program = gridml.Program(gridml.Graph, gridml.update(batch=2)(fit), evaluation)
    with pytest.raises(ProgramError, match=r"a sample of Net, which has modules; expected a type of arrays alone"):
        program.check()


def test_a_run_a_computation_and_a_check_say_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from gridml.cli.main import main

    text = RANKS.read_text()
    sampling = text.replace("pages: gridml.Batch[Page]", "pages: Annotated[gridml.Batch[Page], gridml.sample(50)]")
    sampling = sampling.replace("import numpy as np\n", "from typing import Annotated\n\nimport numpy as np\n", 1)
    sampling = sampling.replace('{"total": float(pages.rank.sum())', '{"total": float(pages.rank.mean() * PAGES)')
    file = tmp_path / "sampling.py"
    file.write_text(sampling)
    computed = gridml.compute(file, threads=1)
    assert dict(computed.sampled) == {"pages": (50, 300)}
    ids = Sample(50, 0).rows(300)
    assert computed.metrics["total"] == pytest.approx(300 * computed.arrays["Page.rank"][ids].mean(), rel=1e-12)
    run = gridml.simulate(file, workers=2, cost="t_x=0.01,t_s=1,push=0.1", run_dir=tmp_path / "run", epochs=3)
    report = run.report()
    assert report.evaluated_on == "50 of 300 pages" and "on 50 of 300 pages, drawn at random" in str(report)
    assert all(", evaluated on 50 of 300 pages" in event.text for event in run.events("metrics"))
    with pytest.raises(SystemExit):
        main(["check", str(file)])
    assert ", on 50 of 300 pages" in capfd.readouterr()[0]
    whole = gridml.simulate(RANKS, workers=2, cost="t_x=0.01,t_s=1,push=0.1", run_dir=tmp_path / "whole", epochs=2)
    assert whole.report().evaluated_on is None and dict(gridml.compute(RANKS, epochs=2).sampled) == {}
