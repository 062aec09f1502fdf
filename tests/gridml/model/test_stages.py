"""Declarations of stages: what they bind, and the errors for what does not fit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gridml
from gridml.aggregates import rule_for
from gridml.engine.pace import used_settings
from gridml.errors import ProgramError
from gridml.model.phases import Stages
from gridml.model.stages import Part
from gridml.model.ticks import ReadBound
from gridml.model.update import Update
from gridml.model.vertex import describe


class At(gridml.Vertex):
    rate = gridml.array("float32")
    loss = gridml.accumulator("float64")
    worst = gridml.accumulator("float64", by="max")
    aggregate = gridml.owned()


class Item(gridml.Vertex):
    q = gridml.array("float32", (2,))
    share = gridml.derived("float32")
    aggregate = gridml.stale_mean()


class Tag(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class User(gridml.Vertex):
    p = gridml.array("float32", (2,), mutable=True)
    age = gridml.array("int64")
    rated = gridml.edge(Item, weight="float32")
    liked = gridml.edge(Tag)
    shunned = gridml.edge(Tag)


class Group(gridml.Vertex):
    users = gridml.edge(User)


class Network(gridml.Vertex):
    net = gridml.module(lambda: None)


@gridml.exchange(over=User)
def learn(user: User, item: Item, rating: gridml.Link, at: At) -> None:
    at.loss += rating.weight * user.p[0] * item.q[0]


@gridml.global_sync
def cool(at: At) -> None:
    at.rate *= 0.5


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(At, rate=1)
    g.add(Item, 3, q=0.5)
    g.add(Tag, 2, count=0)
    rated = gridml.csr(np.array([0, 2, 3]), np.array([0, 2, 1]), np.ones(3, np.float32))
    g.add(User, p=0, age=np.arange(2), rated=rated, liked=np.array([0, 1]), shunned=np.array([1, 1]))
    return g


def program(*stages: Any, after: Any = (), size: int = 2, slack: float | None = None) -> gridml.Program:
    made = gridml.Program(graph, [gridml.MiniBatch(list(stages), size, slack), *after])
    made.check()
    return made


def test_a_program_of_stages_has_the_shape_of_an_f_that_takes_batches() -> None:
    made = program(learn, after=[cool], size=7)
    assert isinstance(made.shape, Stages)
    assert (made.shape.driver, made.shape.batch, made.min_target_batch, made.shape.keeps_rate) == (User, 7, 1, True)
    assert list(made.types()) == ["User", "Tag", "Item", "At"]
    assert made.syncs == [cool]
    assert made.ends_passes
    assert [(a.name, a.part) for a in learn.arguments] == [
        ("user", Part.SCANNED), ("item", Part.END), ("rating", Part.LINK), ("at", Part.CONTEXT),
    ]  # fmt: skip
    assert learn.edge == "rated"


def test_the_vertices_of_a_typical_mini_batch_that_is_cut_by_edges() -> None:
    def wide() -> gridml.Graph:
        g = graph()
        rated = gridml.csr(np.arange(0, 61, 6), np.zeros(60, np.int64), np.ones(60, np.float32))
        tags = np.zeros(10, np.int64)
        g.add(User, p=0, age=tags, rated=rated, liked=tags, shunned=tags)
        return g

    made = gridml.Program(wide, [gridml.MiniBatch([learn], edges=20)])
    assert (made.shape.batch, made.shape.edges, made.shape.shares_batch) == (None, 20, False)
    built = made.build(Path(__file__))
    assert isinstance(made.shape, Stages)
    assert made.shape.edges_of(built.tables["User"]).tolist() == [2, 1, *[6] * 10]
    assert made.shape.batch == 12 / math.ceil(63 / 20) and made.min_target_batch == 3
    both = Stages(gridml.MiniBatch([learn, gridml.exchange(over=User)(liked)], edges=20))
    assert both.edges_of(built.tables["User"]).tolist() == [3, 2, *[7] * 10]
    assert used_settings(made, 4)[1].startswith("4 workers: mini-batches of about 20 edges: ")


def test_rows_are_trained_by_edge_where_one_stage_alone_takes_each_as_an_end() -> None:
    @gridml.apply(Item, at="mirror")
    def refresh(item: Item) -> None:
        item.share = item.q[0]

    @gridml.exchange(over=User)
    def together(user: User, items: gridml.Links[Item]) -> None:
        user.p[0] = 0.0

    def trained_by_edge(*stages: Any) -> frozenset[str]:
        return Stages(gridml.MiniBatch(list(stages), size=4)).trained_by_edge

    assert trained_by_edge(learn) == {"Item"}
    assert trained_by_edge(together) == trained_by_edge(learn, learn) == trained_by_edge(refresh, learn) == frozenset()


def test_a_number_is_that_of_all_vertices_and_accumulators_begin_as_0() -> None:
    tables = graph().tables
    assert tables["Item"].columns["q"].tolist() == [[0.5, 0.5]] * 3
    assert {name: column.tolist() for name, column in tables["At"].columns.items()} == {
        "rate": [1.0], "loss": [0.0], "worst": [0.0],
    }  # fmt: skip
    with pytest.raises(ProgramError, match=r"misses \['rate'\]"):
        gridml.Graph().add(At)
    with pytest.raises(ProgramError, match=r"unknown fields \['share'\]"):
        gridml.Graph().add(Item, q=0, share=0)
    with pytest.raises(ProgramError, match=r"Tag\.count got dtype float64; declared is int64"):
        gridml.Graph().add(Tag, 2, count=0.5)


def test_every_driving_vertex_reaches_the_context() -> None:
    made = program(learn, after=[cool])
    found = made.graph()
    made._connect(found)
    made._connect(found)
    assert found.tables["User"].type.target("@At") is At
    assert found.tables["User"].edges["@At"].constant == 0
    assert "@At" not in describe(User).edges


def test_fields_of_a_context_have_rules_of_their_own() -> None:
    rules = {name: rule_for(f"At/{name}", np.empty(0), describe(At).rule) for name in describe(At).arrays}
    assert rules == {"rate": gridml.owned(), "loss": gridml.add(), "worst": gridml.maximum()}


def test_of_several_edges_the_one_that_an_argument_names() -> None:
    @gridml.exchange(over=User)
    def tag(user: User, liked: Tag, at: At) -> None: ...

    @gridml.exchange(over=User)
    def unclear(user: User, tag: Tag, at: At) -> None: ...

    assert tag.edge == "liked"
    with pytest.raises(ProgramError, match=r"unclear takes Tag, and User has several edges to it; .* liked, shunned"):
        program(unclear)


def links(user: User, ratings: gridml.Links[Item]) -> None: ...
def no_vertex(item: Item) -> None: ...
def no_end(user: User, at: At) -> None: ...
def two_ends(user: User, item: Item, tag: Tag) -> None: ...
def both_forms(user: User, item: Item, ratings: gridml.Links[Item]) -> None: ...
def bare(user, item) -> None: ...  # type: ignore[no-untyped-def]
def number(user: User, item: Item, x: int) -> None: ...
def local(user: User, item: Item, group: Group) -> None: ...
def modules(user: User, item: Item, net: Network) -> None: ...


def test_the_form_for_all_edges_of_a_vertex() -> None:
    found = gridml.exchange(over=User)(links)
    assert [a.part for a in found.arguments] == [Part.SCANNED, Part.LINKS]
    assert found.edge == "rated"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_vertex, "no_vertex looks at User, and takes none"),
        (
            no_end,
            r"no_end takes no vertex that an edge of User leads to; its edges are \['rated', 'liked', 'shunned'\]",
        ),
        (two_ends, r"two_ends takes 2 arguments that are the vertex that an edge leads to \(item, tag\)"),
        (both_forms, "both_forms takes both ratings, all edges, and one edge"),
        (bare, "argument user of bare has no annotation"),
        (
            number,
            "argument x of number is annotated <class 'int'>; expected a vertex type, gridml.Link or gridml.Links",
        ),
        (local, "argument group of local is Group, a local type that no edge of User leads to"),
        (modules, "argument net of modules is Network, which holds modules; stages run on arrays"),
    ],
)
def test_arguments_that_do_not_fit(function: Any, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        program(gridml.exchange(over=User)(function))


@gridml.update
def ones(user: User, rated: Item) -> None: ...


@gridml.update(batch=8, min_batch=2)
def eights(users: gridml.Batch[User], rated: gridml.Batch[Item]) -> None: ...


def test_an_f_alone_is_the_program_with_f_itself() -> None:
    @gridml.update
    def whole(users: gridml.Batch[User], rated: gridml.Batch[Item]) -> None: ...

    def shape(f: Any, size: int) -> tuple[Any, ...]:
        made = gridml.Program(graph, [gridml.MiniBatch([f], size=size), cool])
        assert isinstance(made.shape, Update)
        assert made.syncs == [cool]
        assert (made.consistency.bound, made.division(graph())) == (ReadBound.NONE, None)
        assert made.shape.driver is User
        return made.shape.function, made.shape.batch, made.shape.min_batch

    assert shape(eights, 8) == (eights.function, 8, 2)
    assert shape(whole, 64) == (whole.function, 64, 1)
    assert shape(whole, 1) == (whole.function, 1, 1)
    assert shape(ones, 1) == (ones.function, None, 1)


def mirrors(item: Item) -> None: ...
def liked(user: User, liked: Tag) -> None: ...
def of_tag(tag: Tag) -> None: ...
def of_user(user: User) -> None: ...


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gridml.exchange(over=3), "exchange got over=3; expected the vertex type"),
        (lambda: gridml.exchange(over=User, when="p"), r"exchange got when='p'; .* one number, such as \['age'\]"),
        (lambda: gridml.apply(3, at="mirror"), "apply got 3; expected a vertex type"),
        (lambda: gridml.apply(Item, at="home"), "apply got at='home'; expected 'owner' or 'mirror'"),  # type: ignore[arg-type]
        (
            lambda: program(learn, gridml.apply(Item)(mirrors), slack=math.inf),
            "mirrors is applied at the owner of Item, .* slack=0",
        ),
        (lambda: program(gridml.apply(User, at="mirror")(of_user), learn), "of_user is applied to User at mirrors"),
        (lambda: program(gridml.apply(Item, at="mirror")(of_tag), learn), "of_tag is applied to Item, and takes none"),
        (lambda: program(gridml.apply(Item, at="mirror")(mirrors)), "look at nothing; expected one type"),
        (lambda: program(gridml.apply(At, at="mirror")(cool.function), learn), "to which no edge of User leads"),
        (lambda: gridml.MiniBatch([], size=2), r"MiniBatch got \[\]; expected a list of stages"),
        (lambda: gridml.MiniBatch(learn, size=2), "expected a list of stages"),  # type: ignore[arg-type]
        (lambda: program(learn, cool, slack=math.inf), "cool is a global_sync, when all parts' .* slack=0"),
        (lambda: program(cool, learn), "cool is the first stage of a MiniBatch, .* expected an exchange first"),
        (lambda: gridml.MiniBatch([mirrors], size=2), "MiniBatch got mirrors as a stage; expected functions under"),  # type: ignore[list-item]
        (lambda: gridml.MiniBatch([learn], size=0), "MiniBatch got size=0; expected a number of vertices from 1 to"),
        (lambda: gridml.MiniBatch([learn], edges=0), "MiniBatch got edges=0; expected a number of edges from 1 to"),
        (lambda: gridml.MiniBatch([learn], edges=2.5), "MiniBatch got edges=2.5; expected a number of edges from 1"),  # type: ignore[arg-type]
        (lambda: gridml.MiniBatch([learn], slack=math.inf), "MiniBatch got slack=inf and neither size nor edges"),
        (lambda: gridml.MiniBatch([learn], 2, edges=3), "MiniBatch got size=2 and edges=3; expected one of them"),
        (lambda: gridml.MiniBatch([learn, ones], size=1), "got ones, which is .*, among 2 stages; expected it al"),
        (lambda: gridml.MiniBatch([ones, ones], size=1), "got ones, which is under @gridml.update, among 2 stages"),
        (lambda: gridml.MiniBatch([ones], size=1, slack=0, seed=3), "got slack=0, seed=3 with ones, which is under"),
        (lambda: gridml.MiniBatch([ones], edges=9), "got edges=9 with ones, .*; expected size= alone"),
        (lambda: gridml.MiniBatch([eights], size=9), r"got size=9, and eights is under .*batch=8\); expected"),
        (lambda: program(ones), "got size=2, and ones takes one vertex at a time; expected size=1, or"),
        (lambda: gridml.MiniBatch([learn], size=2, slack=-1), "MiniBatch got slack=-1; expected a whole number"),
        (lambda: gridml.MiniBatch([learn], size=2, slack=math.nan), "MiniBatch got slack=nan; expected a whole number"),
        (lambda: gridml.MiniBatch([learn], size=2, slack=0.5), "MiniBatch got slack=0.5; expected a whole number"),
        (lambda: gridml.MiniBatch([learn], size=2, parts=0), "MiniBatch got parts=0; expected a number from 1 to"),
        (lambda: gridml.MiniBatch([learn], size=2, exact=1), "MiniBatch got exact=1; expected True or False"),  # type: ignore[arg-type]
        (lambda: gridml.Program(graph, []), "Program got list as its update"),
        (lambda: gridml.Program(graph, [cool]), "Program got GlobalSync as its update"),
        (lambda: program(learn, after=[learn]), "Program got learn behind the first of its list"),
        (lambda: program(learn, after=[gridml.global_sync(of_user)]), "of_user takes .*; a global_sync takes one"),
        (lambda: gridml.accumulator("float64", by="mean"), "accumulator got by='mean'"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        make()


def test_a_context_is_one_vertex() -> None:
    def two() -> gridml.Graph:
        g = graph()
        g.add(At, rate=2)
        return g

    def none() -> gridml.Graph:
        g = graph()
        del g.tables["At"]
        return g

    for make, count in ((two, 2), (none, 0)):
        made = gridml.Program(make, [gridml.MiniBatch([learn], size=2)])
        with pytest.raises(
            ProgramError, match=f"the graph has {count} At vertices, and a stage takes At as its context"
        ):
            made.build(__file__)  # type: ignore[arg-type]


def test_fields_of_stages_belong_to_a_replicated_type_with_a_rule() -> None:
    class Local(gridml.Vertex):
        share = gridml.derived("float64")

    class Least(gridml.Vertex):
        loss = gridml.accumulator("float64", by="min")
        aggregate = gridml.owned()

    class Own(gridml.Vertex):
        share = gridml.derived("float64")

        def aggregate(self, replica: Own, merge: gridml.Merge) -> None: ...

    for cls, name in ((Local, "share"), (Own, "share")):
        with pytest.raises(ProgramError, match=rf"{cls.__name__}\.{name} is a field of stages"):
            describe(cls)
    with pytest.raises(ProgramError, match=r"Least\.loss is a minimum, .* belongs to a local type"):
        describe(Least)


def test_a_global_sync_can_end_a_run_if_it_returns_anything() -> None:
    @gridml.global_sync
    def cool(at: At) -> None:
        if at.loss > 1:
            return
        at.rate *= 0.5

    @gridml.global_sync
    def enough(at: At) -> bool:
        return bool(at.loss < 1)

    @gridml.global_sync
    def perhaps(at: At) -> bool | None:
        return True if at.loss < 1 else None

    assert [each.may_end for each in (cool, enough, perhaps)] == [False, True, True]
