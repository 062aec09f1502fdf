"""Declarations of vertex classes, and the views that f and g receive of their vertices."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gridml
from gridml.engine.modules import Modules, average_with
from gridml.errors import NotFiniteError, ProgramError
from gridml.model.batch import Rows
from gridml.model.vertex import VertexId, describe, reachable


def linear() -> nn.Module:
    return nn.Linear(2, 1, bias=False)


SGD = partial(torch.optim.SGD, lr=0.5)


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Page(gridml.Vertex):
    title = gridml.array("uint8", (4,))
    rank = gridml.array("float64", mutable=True)
    links = gridml.edge("Page")
    words = gridml.edge(Word, weight="float32")


class Network(gridml.Vertex):
    model = gridml.module(linear, SGD)


class Frozen(gridml.Vertex):
    model = gridml.module(linear)


def test_a_type_lists_what_it_declares_in_order() -> None:
    page = describe(Page)
    assert (page.name, page.fields, list(page.edges)) == ("Page", ["title", "rank"], ["links", "words"])
    assert page.mutable == ["rank"]
    assert not page.replicated
    assert page.target("links") is Page
    assert page.target("words") is Word
    assert page.edges["words"].weight == np.float32
    word = describe(Word)
    assert word.replicated
    assert word.rule == gridml.add()
    assert word.mutable == []
    assert not word.has_own_rule


def test_a_module_makes_a_type_replicated_and_a_method_is_its_own_rule() -> None:
    class Own(gridml.Vertex):
        value = gridml.array("float64")

        def aggregate(self, replica: Own, merge: gridml.Merge) -> None:
            self.value = replica.value

    assert describe(Network).replicated
    assert describe(Network).rule is None
    assert not describe(Network).has_own_rule
    assert describe(Own).replicated
    assert describe(Own).has_own_rule


def test_a_subclass_inherits_and_may_declare_again() -> None:
    class Wiki(Page):
        views = gridml.array("int32")
        rank = gridml.edge("Wiki")  # type: ignore[assignment]

    wiki = describe(Wiki)
    assert list(wiki.arrays) == ["title", "views"]
    assert list(wiki.edges) == ["links", "words", "rank"]
    assert wiki.target("links") is Page
    assert wiki.target("rank") is Wiki


class Lost(gridml.Vertex):
    nowhere = gridml.edge("Missing")


def test_an_edge_to_an_unknown_name_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"Lost\.nowhere leads to 'Missing'"):
        describe(Lost).target("nowhere")


def test_types_that_make_no_sense_are_refused() -> None:
    class Both(gridml.Vertex):
        model = gridml.module(linear)
        count = gridml.array("int64")

    class NotARule(gridml.Vertex):
        count = gridml.array("int64")
        aggregate = "sum"

    class Uncalled(gridml.Vertex):
        count = gridml.array("int64")
        aggregate = 3

    class Outgoing(gridml.Vertex):
        model = gridml.module(linear)
        pages = gridml.edge(Page)

    for cls, message in [
        (Both, r"Both has both modules \(model\) and arrays \(count\)"),
        (NotARule, r"NotARule\.aggregate is 'sum'; expected a rule"),
        (Uncalled, r"Uncalled\.aggregate is 3"),
        (Outgoing, r"Outgoing is replicated and has edges \(pages\)"),
    ]:
        with pytest.raises(ProgramError, match=message):
            describe(cls)


@pytest.mark.parametrize("name", ["ids", "step", "get_id", "get_data", "get_neighbours", "update_value", "_rank"])
def test_names_that_views_use_themselves_are_refused(name: str) -> None:
    cls = type("Taken", (gridml.Vertex,), {name: gridml.array("int64")})
    with pytest.raises(ProgramError, match=f"field called {name}"):
        describe(cls)


@pytest.mark.parametrize("dtype", ["complex64", "U5", "object", "datetime64[s]", "longdouble"])
def test_a_dtype_that_cannot_travel_is_refused(dtype: str) -> None:
    with pytest.raises(ProgramError, match="got dtype"):
        gridml.array(dtype)


def test_arrays_have_the_byte_order_of_the_machine() -> None:
    assert gridml.array(">i4").dtype == np.dtype("=i4")


def test_a_vertex_class_is_never_called() -> None:
    with pytest.raises(ProgramError, match=re.escape("graph.add(Page, ...)")):
        Page()


def test_reachable_types_and_their_names() -> None:
    assert list(reachable(Page)) == ["Page", "Word"]
    other = type("Word", (gridml.Vertex,), {"count": gridml.array("int64")})

    class Book(gridml.Vertex):
        pages = gridml.edge(Page)
        words = gridml.edge(other)

    with pytest.raises(ProgramError, match="two vertex types are called Word"):
        reachable(Book)


# --- views


def page_rows(**options: Any) -> Rows:
    vertex_type = describe(Page)
    fields = {"title": np.zeros((3, 4), np.uint8), "rank": np.array([0.5, 1.5, 2.5])}
    return Rows(
        vertex_type,
        np.array([7, 8, 9]),
        fields,
        **{"changed": frozenset(vertex_type.mutable), "torch": False, **options},
    )


def test_a_view_reads_and_writes_its_row() -> None:
    rows = page_rows()
    page = Page._view(rows, 1)
    assert page.get_id() == VertexId("Page", 8) == ("Page", 8)
    assert page.rank == 1.5
    page.rank += 1
    assert rows.fields["rank"].tolist() == [0.5, 2.5, 2.5]
    assert rows.dirty.tolist() == [False, True, False]
    data = page.get_data()
    assert data.keys() == {"title", "rank"}
    assert data["rank"] == 2.5


def test_update_value_takes_what_get_data_gives() -> None:
    rows = page_rows()
    rows.edges = dict.fromkeys(describe(Page).edges, None)  # type: ignore[arg-type]
    page = Page._view(rows, 0)
    page.get_neighbours = lambda: [Page._view(rows, 2)]  # type: ignore[method-assign]
    page.update_value(VertexId("Page", 9), {"rank": 4.0})
    page.update_value(page.get_id(), {"rank": 3.0})
    assert rows.fields["rank"].tolist() == [3.0, 1.5, 4.0]
    with pytest.raises(ProgramError, match=r"neither .* itself nor one of its neighbours"):
        page.update_value(VertexId("Page", 8), {"rank": 0.0})


def test_read_only_fields_cannot_be_written_in_any_way() -> None:
    page = Page._view(page_rows(), 0)
    with pytest.raises(ProgramError, match=r"Page\.title was written, which is read-only"):
        page.title = np.ones(4)
    with pytest.raises(ValueError, match="read-only"):
        page.title[0] = 1
    with pytest.raises(ProgramError, match=r"Page\.links was written; edges"):
        page.links = [page]
    with pytest.raises(ProgramError, match="Page has no field 'rnak' to write"):
        page.rnak = 1.0
    with pytest.raises(ProgramError, match="as they were when the superstep began"):
        Page._view(page_rows(changed=frozenset(), before=True), 0).rank = 1.0


def test_edges_that_are_not_here_say_so() -> None:
    with pytest.raises(ProgramError, match=r"the edges Page\.links of this vertex are not here"):
        Page._view(page_rows(), 0).get_neighbours()


def test_torch_programs_read_tensors_that_are_written_through() -> None:
    rows = page_rows(changed=frozenset({"title"}), torch=True)
    title = Page._view(rows, 0).title
    assert isinstance(title, torch.Tensor)
    title[0] = 5
    assert Page._view(rows, 0).title[0] == 5
    rows.write_back_copies()  # as f returns
    assert rows.fields["title"][0, 0] == 5


# --- modules


def network(modules: Modules, index: int = 0) -> Any:
    return modules.vertex(index)


def test_a_step_is_one_step_of_the_optimiser() -> None:
    torch.manual_seed(0)
    vertex = network(Modules(describe(Network)))
    before = vertex.model.weight.detach().clone()
    vertex.step(vertex.model(torch.ones(1, 2)).sum())
    torch.testing.assert_close(vertex.model.weight.detach(), before - 0.5, rtol=0, atol=0)
    vertex.step(vertex.model(torch.ones(1, 2)).sum())  # gradients of the first step are forgotten
    torch.testing.assert_close(vertex.model.weight.detach(), before - 1.0)


def test_a_step_of_several_vertices_follows_one_loss() -> None:
    modules = Modules(describe(Network))
    first, second = network(modules, 0), network(modules, 1)
    before = [v.model.weight.detach().clone() for v in (first, second)]
    loss = first.model(torch.ones(1, 2)).sum() + 2 * second.model(torch.ones(1, 2)).sum()
    first.step(loss, second)
    torch.testing.assert_close(first.model.weight.detach(), before[0] - 0.5)
    torch.testing.assert_close(second.model.weight.detach(), before[1] - 1.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_touches_nothing(bad: float) -> None:
    vertex = network(Modules(describe(Network)))
    before = vertex.model.weight.detach().clone()
    with pytest.raises(NotFiniteError, match="Lower the learning rate"):
        vertex.step(vertex.model(torch.ones(1, 2)).sum() * bad)
    torch.testing.assert_close(vertex.model.weight.detach(), before, rtol=0, atol=0)


def test_a_loss_that_nothing_can_be_stepped_by_is_described() -> None:
    vertex = network(Modules(describe(Network)))
    scores = vertex.model(torch.ones(3, 2))
    with pytest.raises(ProgramError, match=r"step got float; expected the loss as the tensor .*without \.item\(\)"):
        vertex.step(scores.sum().item())
    with pytest.raises(ProgramError, match=r"step got a loss of shape \(3, .*expected one number"):
        vertex.step(scores)
    with pytest.raises(ProgramError, match="step got a loss without gradients: it was detached"):
        vertex.step(scores.detach().sum())


def test_a_field_with_the_name_of_its_factory_is_distinguished() -> None:
    with pytest.raises(ProgramError, match=r"gridml\.module got the field 'net' of the same class"):

        class Twice(gridml.Vertex):
            def net() -> nn.Module:  # type: ignore[misc]
                return nn.Linear(2, 1)

            made = gridml.module(net)
            made.name = "net"  # as Python sets it when the class is complete, which here it is not
            again = gridml.module(made)  # type: ignore[arg-type]


def test_a_step_without_an_optimiser_says_what_to_write() -> None:
    vertex = network(Modules(describe(Frozen)))
    with pytest.raises(ProgramError, match=r"step was called for Frozen.*torch\.optim\.SGD"):
        vertex.step(vertex.model(torch.ones(1, 2)).sum())


def test_get_data_of_one_field_is_its_value_and_goes_back_in() -> None:
    modules = Modules(describe(Network))
    first, second = network(modules, 0), network(modules, 1)
    assert first.get_data() is first.model
    first.update_value(first.get_id(), second.get_data())
    torch.testing.assert_close(first.model.weight, second.model.weight)
    assert first.model is not second.model
    first.update_value(first.get_id(), {"weight": torch.zeros(1, 2)})
    assert first.model.weight.tolist() == [[0.0, 0.0]]


def test_tied_weights_are_one_tensor() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(3, 2)
            self.output = nn.Linear(2, 3, bias=False)
            self.output.weight = self.embedding.weight

    class Language(gridml.Vertex):
        model = gridml.module(Tied)

    assert list(Modules(describe(Language)).views(0)) == ["Language/0/model/embedding.weight"]


def test_views_are_the_modules_own_memory() -> None:
    modules = Modules(describe(Network))
    views = modules.views(0)
    assert list(views) == ["Network/0/model/weight"]
    views["Network/0/model/weight"][:] = 3
    assert network(modules).model.weight.tolist() == [[3.0, 3.0]]


def test_factories_that_make_something_else_are_refused() -> None:
    class Odd(gridml.Vertex):
        model = gridml.module(lambda: 3)

    class Eighth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.zeros(1).to(torch.float8_e4m3fn))

    class Quarter(gridml.Vertex):
        model = gridml.module(Eighth)

    with pytest.raises(ProgramError, match=r"the factory of Odd\.model made a int"):
        Modules(describe(Odd)).make(0)
    with pytest.raises(ProgramError, match=r"Quarter\.model holds weight as torch\.float8"):
        Modules(describe(Quarter)).views(0)


def test_rates_are_the_users_times_a_factor() -> None:
    modules = Modules(describe(Network))
    modules.make(0)
    for factor in (0.5, 0.1, 1.0):
        modules.set_rate(factor)
        assert modules.optimisers(0)["model"].param_groups[0]["lr"] == 0.5 * factor
    modules.forget_optimisers()
    modules.set_rate(0.2)
    assert modules.optimisers(0)["model"].param_groups[0]["lr"] == pytest.approx(0.1)


def test_rates_follow_the_batch() -> None:
    modules = Modules(describe(Network))
    modules.make(0)
    modules.set_rate(0.5, 0.5)
    assert modules.optimisers(0)["model"].param_groups[0]["lr"] == 0.5 * 0.5 * 0.5


def test_average_with_moves_floats_and_keeps_the_larger_count() -> None:
    mine, theirs = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    with torch.no_grad():
        theirs.weight.fill_(3.0)
        theirs.num_batches_tracked.fill_(7)
    average_with(mine, theirs, 0.25)
    assert mine.weight.item() == 1.5
    assert mine.num_batches_tracked.item() == 7
