"""The engine runs f on a chunk: both forms of f agree, every change is found, and replicas are rebased."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gridml
from gridml.engine.engine import Engine
from gridml.engine.update_runner import BatchFailed
from gridml.errors import NotFiniteError, ProgramError
from gridml.model.chunk import BEFORE, cut
from gridml.model.graph import components
from gridml.model.vertex import describe
from gridml.protocol.push import PushContent, ReplicaPart, decode_replica, encode, encode_replica

Arrays = dict[str, np.ndarray[Any, Any]]


def begin(program: gridml.Program, g: gridml.Graph, vertices: list[int] | None = None) -> Engine:
    """An engine on one chunk of `vertices` (default: all), with the initial replica."""
    driver = program.shape.driver.__name__
    at = np.arange(g.tables[driver].count) if vertices is None else np.array(vertices)
    parts = None if program.consistency.is_bsp else components(g)
    if parts is not None:
        at = parts.units[driver].members if vertices is None else at
    ends = None if parts is None else np.append(np.flatnonzero(np.diff(parts.label[driver][at])) + 1, len(at))
    torch.manual_seed(0)
    engine = Engine(program)
    engine.begin(cut(g, driver, at, ends, parts, bsp=program.consistency.is_bsp))
    engine.restart(decode_replica(rows(engine, g)))
    return engine


def rows(engine: Engine, g: gridml.Graph) -> Arrays:
    """Return the rows of array fields that the engine's chunk touches, with the graph's values."""
    assert engine.chunk is not None
    arrays: Arrays = {}
    for name, ids in engine.chunk.touched().items():
        table = g.tables[name.removesuffix(BEFORE)]
        if table.type.replicated and not table.type.modules:
            arrays[f"@rows/{name}"] = ids
            arrays |= {f"{name}/{field}": column[ids] for field, column in table.columns.items()}
    return arrays


def count_of(engine: Engine) -> int:
    assert engine.chunk is not None
    return engine.chunk.count


def push(engine: Engine) -> Arrays:
    return encode_replica(engine.wire(engine.snapshot()))


def changed_fields(engine: Engine, start: int, stop: int) -> Arrays:
    return encode(PushContent(fields=engine.changed_fields(start, stop)))


def copies(engine: Engine) -> Arrays:
    """Return a snapshot of modules, by name."""
    return encode_replica(engine.snapshot().replica)


def views(engine: Engine) -> Arrays:
    return {name: view for views in engine._views.values() for name, view in views.items()}


# --- one network: both forms of f


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


class Network(gridml.Vertex):
    model = gridml.module(linear, partial(torch.optim.SGD, lr=0.1, momentum=0.9))


class Point(gridml.Vertex):
    x = gridml.array("float32", (3,))
    y = gridml.array("float32")
    loss = gridml.array("float32", mutable=True)
    network = gridml.edge(Network)


@gridml.update(batch=1)
def fit_batch(points: gridml.Batch[Point], network: Network) -> None:
    loss = ((network.model(points.x)[:, 0] - points.y) ** 2).sum()
    points.loss = loss.detach()
    network.step(loss)


@gridml.update(batch=8)
def fit_many(points: gridml.Batch[Point], network: Network) -> None:
    network.step(((network.model(points.x)[:, 0] - points.y) ** 2).sum())


@gridml.update
def fit_one(point: Point, network: Network) -> None:
    loss = ((network.model(point.x[None])[:, 0] - point.y) ** 2).sum()
    point.loss = loss.detach()
    network.step(loss)


@gridml.update
def fit_paper(point: Point) -> None:
    data = point.get_data()
    network = point.get_neighbours()[0]
    model = network.get_data()
    loss = ((model(data["x"][None])[:, 0] - data["y"]) ** 2).sum()
    network.step(loss)
    point.update_value(point.get_id(), {"loss": loss.detach()})
    point.update_value(network.get_id(), model)


def points(networks: Any = 1, count: int = 12) -> gridml.Graph:
    rng = np.random.default_rng(3)
    g = gridml.Graph()
    made = g.add(Network, networks if isinstance(networks, int) else 1 + max(networks))
    g.add(
        Point,
        x=rng.normal(size=(count, 3)).astype(np.float32),
        y=rng.normal(size=count).astype(np.float32),
        loss=np.zeros(count, np.float32),
        network=made if isinstance(networks, int) else np.array(networks),
    )
    return g


def test_a_snapshot_copies_what_was_trained_and_nothing_else() -> None:
    g = points()
    engine = begin(gridml.Program(lambda: g, fit_batch), g)
    first = engine.snapshot()
    ((key, tensors),) = first.replica.modules.items()
    frozen = "Network/0/model/0.bias"
    engine.train(0, 4, 1.0)
    views(engine)[frozen][:] = tensors[frozen]  # as if it had not been trained
    second = engine.snapshot(first.replica.modules).replica.modules[key]
    assert {name for name in tensors if second[name] is tensors[name]} == {frozen}
    for name, view in views(engine).items():
        np.testing.assert_array_equal(second[name], view)
        assert not np.shares_memory(second[name], view)


def trained(update: Any, g: gridml.Graph) -> tuple[Arrays, Arrays]:
    engine = begin(gridml.Program(lambda: g, update), g)
    for at in range(count_of(engine)):
        engine.train(at, at + 1, 1.0)
    return push(engine), changed_fields(engine, 0, count_of(engine))


@pytest.mark.parametrize("form", [fit_one, fit_paper], ids=["one", "paper"])
@pytest.mark.parametrize("networks", [1, [0, 1, 0, 0, 1, 1] * 2], ids=["one network", "two networks"])
def test_a_batch_of_one_and_one_vertex_are_the_same_to_the_bit(form: Any, networks: Any) -> None:
    sent, fields = trained(fit_batch, points(networks))
    sent_one, fields_one = trained(form, points(networks))
    assert sent.keys() == sent_one.keys()
    for name, values in sent.items():
        assert values.tobytes() == sent_one[name].tobytes(), name
    assert fields["Point/loss"].tobytes() == fields_one["Point/loss"].tobytes()
    assert (fields["Point/loss"] > 0).all()


def test_training_is_a_plain_loop() -> None:
    g = points()
    sent, _ = trained(fit_batch, g)
    torch.manual_seed(0)
    model = linear()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    columns = g.tables["Point"].columns
    for x, y in zip(torch.from_numpy(columns["x"]), torch.from_numpy(columns["y"]), strict=True):
        optimiser.zero_grad()
        ((model(x[None])[:, 0] - y) ** 2).sum().backward()
        optimiser.step()
    for name, tensor in model.state_dict().items():
        assert sent[f"Network/0/model/{name}"].tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("form", ["array", "csr", "added twice"])
def test_a_batch_is_split_by_the_network_that_each_vertex_leads_to(form: str) -> None:
    which = [0, 1, 0, 0, 2, 1, 0, 2] if form != "added twice" else [0] * 4 + [1] * 4
    g = points(which, count=8)
    if form == "csr":
        table = g.tables["Point"]
        table.edges["network"] = gridml.csr(np.arange(9), which)
    elif form == "added twice":
        single = points(1, count=8).tables["Point"].columns
        g = gridml.Graph()
        for network, part in [(g.add(Network), slice(0, 4)), (g.add(Network), slice(4, 8))]:
            g.add(Point, **{n: column[part] for n, column in single.items()}, network=network)
    engine = begin(gridml.Program(lambda: g, fit_many), g)
    engine.train(0, 8, 1.0)
    sent = push(engine)
    for network in sorted(set(which)):
        members = [i for i, n in enumerate(which) if n == network]
        alone = points(which, count=8)
        column = alone.tables["Point"].columns
        torch.manual_seed(0)
        models = [linear() for _ in range(network + 1)]
        optimiser = torch.optim.SGD(models[network].parameters(), lr=0.1, momentum=0.9)
        x, y = (torch.from_numpy(column[n][members]) for n in ("x", "y"))
        ((models[network](x)[:, 0] - y) ** 2).sum().backward()
        optimiser.step()
        for name, tensor in models[network].state_dict().items():
            np.testing.assert_array_equal(sent[f"Network/{network}/model/{name}"], tensor.numpy())


def test_a_push_holds_only_networks_that_were_used() -> None:
    g = points([0] * 4 + [1] * 4, count=8)
    engine = begin(gridml.Program(lambda: g, fit_many), g)
    assert push(engine) == {}
    engine.train(0, 4, 1.0)
    assert {name.split("/")[1] for name in push(engine)} == {"0"}
    engine.train(4, 8, 1.0)
    assert {name.split("/")[1] for name in push(engine)} == {"1"}
    assert push(engine) == {}


def test_the_rate_is_the_users_times_the_factor_and_the_scale_of_the_batch() -> None:
    def moved(factor: float, scale: float = 1.0) -> Any:
        engine = begin(gridml.Program(points, fit_many), points())
        before = copies(engine)
        engine.train(0, 8, factor, scale)
        after = copies(engine)
        return after["Network/0/model/2.bias"] - before["Network/0/model/2.bias"]

    assert moved(0.0) == 0
    np.testing.assert_allclose(moved(0.25), moved(1.0) / 4, rtol=1e-5)
    np.testing.assert_allclose(moved(1.0, 0.25), moved(0.25), rtol=1e-5)


@pytest.mark.parametrize("several", [np.zeros((4, 2), int), gridml.csr([0, 1, 2, 3, 3], [0, 0, 0])])
@pytest.mark.parametrize("update", [fit_batch, fit_one])
def test_one_network_is_not_several_or_none(several: Any, update: Any) -> None:
    g = points(count=4)
    table = g.tables["Point"]
    fresh = gridml.Graph()
    fresh.add(Network, 1)
    fresh.add(Point, **table.columns, network=several)
    engine = begin(gridml.Program(lambda: fresh, update), fresh)
    with pytest.raises(BatchFailed) as caught:
        engine.train(3, 4, 1.0)
    assert isinstance(caught.value.__cause__, ProgramError)
    assert "Batch[Network]" in str(caught.value.__cause__)


def test_a_failure_names_its_vertices_and_keeps_its_cause() -> None:
    g = points()
    g.tables["Point"].columns["y"][5] = np.nan
    engine = begin(gridml.Program(lambda: g, fit_many), g, [3, 5, 7])
    with pytest.raises(BatchFailed) as caught:
        engine.train(0, 3, 1.0)
    assert (caught.value.first, caught.value.last) == (5, 5)
    assert caught.value.named("Point") == "Point 5"
    assert isinstance(caught.value.__cause__, NotFiniteError)


def failed_on(
    order: list[int], fails: Callable[[set[int]], bool], error: BaseException | None = None
) -> tuple[int, int]:
    """Return the vertices reported for failures of f that depend on a batch's content; `order` is that of the chunk."""

    @gridml.update(batch=8)
    def picky(points: gridml.Batch[Point], network: Network) -> None:
        given = {int(id_) for id_ in points.ids}
        if fails(given):
            raise error or ValueError("these not")

    g = points(count=20)
    engine = begin(gridml.Program(lambda: g, picky), g, order)
    with pytest.raises(BatchFailed) as caught:
        engine.train(0, len(order), 1.0)
    return caught.value.first, caught.value.last


SHUFFLED = [4, 17, 2, 9, 11, 3, 8]


@pytest.mark.parametrize("bad", SHUFFLED)
def test_one_bad_vertex_of_a_shuffled_batch_is_named(bad: int) -> None:
    assert failed_on(SHUFFLED, lambda given: bad in given) == (bad, bad)


def test_vertices_that_fail_together_are_named_together() -> None:
    assert failed_on(SHUFFLED, lambda given: {17, 8} <= given) == (4, 8)
    assert failed_on(SHUFFLED, lambda given: {9, 11} <= given) == (9, 11)
    assert failed_on(SHUFFLED, lambda given: bool({4, 8} & given)) == (4, 8)
    assert failed_on(SHUFFLED, lambda given: True) == (4, 8)


def test_who_fails_otherwise_alone_is_not_blamed() -> None:
    """The function fails like a layer that needs statistics of its batch, which one vertex does not have."""
    message = iter(f"failure {k}" for k in range(100))

    class Numbered(ValueError):
        def __str__(self) -> str:
            return next(message)

    assert failed_on(SHUFFLED, lambda given: 2 in given, Numbered()) == (4, 8)


def test_a_batch_that_ends_its_process_is_not_tried_again() -> None:
    tried: list[set[int]] = []

    def ends(given: set[int]) -> bool:
        tried.append(given)
        return True

    assert failed_on(SHUFFLED, ends, SystemExit(0)) == (4, 8)
    assert len(tried) == 1


@pytest.mark.parametrize("end", [SystemExit(0), GeneratorExit(), KeyboardInterrupt(), MemoryError()])
def test_however_f_ends_it_has_failed(end: BaseException) -> None:
    @gridml.update
    def ends(point: Point, network: Network) -> None:
        raise end

    g = points()
    engine = begin(gridml.Program(lambda: g, ends), g, [3])
    with pytest.raises(BatchFailed) as caught:
        engine.train(0, 1, 1.0)
    assert caught.value.__cause__ is end


# --- several replicated types in one program


class Encoder(gridml.Vertex):
    model = gridml.module(lambda: nn.Linear(3, 2), partial(torch.optim.SGD, lr=0.1))


class Decoder(gridml.Vertex):
    model = gridml.module(lambda: nn.Linear(2, 3), partial(torch.optim.SGD, lr=0.2))


class Tally(gridml.Vertex):
    seen = gridml.array("int64")
    aggregate = gridml.add()


class Sample(gridml.Vertex):
    x = gridml.array("float32", (3,))
    encoder = gridml.edge(Encoder)
    decoder = gridml.edge(Decoder)
    tallies = gridml.edge(Tally)


@gridml.update(batch=4)
def code(samples: gridml.Batch[Sample], encoder: Encoder, decoder: Decoder, tallies: gridml.Batch[Tally]) -> None:
    loss = ((decoder.model(encoder.model(samples.x)) - samples.x) ** 2).mean()
    encoder.step(loss, decoder)
    tallies.seen.index_add_(0, samples.tallies.index, torch.ones(len(samples.tallies.index), dtype=torch.int64))


def samples() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Tally, seen=np.zeros(3, int))
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    tallies = gridml.csr([0, 2, 3, 3, 4, 6, 7, 8, 9], [0, 1, 0, 0, 2, 2, 0, 2, 0])
    g.add(Sample, x=x, encoder=g.add(Encoder), decoder=g.add(Decoder), tallies=tallies)
    return g


def test_several_replicated_types_train_on_one_loss() -> None:
    g = samples()
    engine = begin(gridml.Program(lambda: g, code), g)
    before = copies(engine)
    for at in (0, 4):
        engine.train(at, at + 4, 1.0)
    sent = push(engine)
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(3, 2), nn.Linear(2, 3)
    optimisers = [torch.optim.SGD(encoder.parameters(), 0.1), torch.optim.SGD(decoder.parameters(), 0.2)]
    x = torch.from_numpy(g.tables["Sample"].columns["x"])
    for at in (0, 4):
        for optimiser in optimisers:
            optimiser.zero_grad()
        part = x[at : at + 4]
        ((decoder(encoder(part)) - part) ** 2).mean().backward()
        for optimiser in optimisers:
            optimiser.step()
    for name, model in [("Encoder", encoder), ("Decoder", decoder)]:
        np.testing.assert_array_equal(sent[f"{name}/0/model/weight"], model.weight.detach().numpy())
        assert (sent[f"{name}/0/model/weight"] != before[f"{name}/0/model/weight"]).any()
    assert sent["@rows/Tally"].tolist() == [0, 1, 2]
    assert sent["Tally/seen"].tolist() == [5, 1, 3]


# --- rows, weights and neighbours of neighbours


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Text(gridml.Vertex):
    words = gridml.edge(Word, weight="int64")
    total = gridml.array("int64", mutable=True)


@gridml.update(batch=3)
def count_many(texts: gridml.Batch[Text], words: gridml.Batch[Word]) -> None:
    links = texts.words
    np.add.at(words.count, links.index, links.weight)
    texts.total = np.add.reduceat(np.append(links.weight, 0), links.offsets[:-1]) * (np.diff(links.offsets) > 0)


@gridml.update
def count_one(text: Text) -> None:
    for word, weight in zip(text.get_neighbours(), text.get_weights(), strict=True):
        text.update_value(word.get_id(), word.get_data() + weight)
    text.update_value(text.get_id(), sum(text.get_weights()))


@gridml.update
def count_views(text: Text, words: gridml.Batch[Word]) -> None:
    weight = dict.fromkeys(words.ids.tolist(), 0)
    for word, w in zip(text.words, text.get_weights(), strict=True):
        weight[word.get_id().index] += w
    words.count += np.array(list(weight.values()), np.int64)
    text.total = sum(weight.values())


@st.composite
def texts(draw: st.DrawFn) -> gridml.Graph:
    words = draw(st.integers(1, 5))
    lists = draw(st.lists(st.lists(st.tuples(st.integers(0, words - 1), st.integers(0, 9)), max_size=4), min_size=1))
    offsets = np.cumsum([0, *map(len, lists)])
    pairs = [pair for pairs in lists for pair in pairs]
    g = gridml.Graph()
    g.add(Word, count=np.arange(words))
    ends, weight = np.array([w for w, _ in pairs], int), np.array([c for _, c in pairs], int)
    g.add(Text, words=gridml.csr(offsets, ends, weight), total=np.full(len(lists), -1))
    return g


@given(texts(), st.integers(1, 4))
def test_counts_are_exact_however_f_is_written(g: gridml.Graph, size: int) -> None:
    words, edges = g.tables["Word"].count, g.tables["Text"].edges["words"]
    assert edges.offsets is not None
    assert edges.weight is not None
    expected = np.arange(words)
    np.add.at(expected, edges.targets, edges.weight)
    totals = [int(edges.weight[a:b].sum()) for a, b in zip(edges.offsets, edges.offsets[1:], strict=False)]
    for update in (count_many, count_one, count_views):
        engine = begin(gridml.Program(lambda: g, update), g)
        n = count_of(engine)
        for at in range(0, n, size):
            engine.train(at, min(at + size, n), 1.0)
        sent = push(engine)
        assert sent["@rows/Word"].tolist() == sorted(set(edges.targets.tolist()))
        assert sent["Word/count"].tolist() == expected[sent["@rows/Word"]].tolist()
        fields = changed_fields(engine, 0, n)
        assert fields["@ids/Text"].tolist() == list(range(n))
        assert fields["Text/total"].tolist() == totals


class Site(gridml.Vertex):
    visits = gridml.array("int64", mutable=True)
    word = gridml.edge(Word)
    network = gridml.edge(Network)


class Visit(gridml.Vertex):
    site = gridml.edge(Site)
    before = gridml.edge("Visit")
    done = gridml.array("int64", mutable=True)


@gridml.update
def visit(visit: Visit) -> None:
    visit.done += 1
    (site,) = visit.site
    site.visits += 1
    (word,) = site.word
    word.count += 10
    for earlier in visit.before:
        earlier.done += 100
        for first in earlier.before:
            first.done += 1000
    (network,) = site.network
    network.step(network.model(torch.ones(1, 3)).sum())


def visits() -> gridml.Graph:
    """Visits 0, 1 and 2 follow each other at site 1; visit 3 is alone at site 0."""
    g = gridml.Graph()
    g.add(Word, count=np.array([1, 2, 3]))
    g.add(Network, 2)
    g.add(Site, visits=np.zeros(3, int), word=[2, 0, 1], network=[0, 1, 0])
    g.add(Visit, site=[1, 1, 1, 0], before=gridml.csr([0, 0, 1, 2, 2], [0, 1]), done=np.zeros(4, int))
    return g


def test_changes_at_neighbours_and_their_neighbours_are_found() -> None:
    g = visits()
    engine = begin(gridml.Program(lambda: g, visit), g, [0, 1, 2])
    engine.train(0, 3, 1.0)
    sent, fields = push(engine), changed_fields(engine, 0, 3)
    assert dict(zip(fields["@ids/Visit"].tolist(), fields["Visit/done"].tolist(), strict=True)) == {
        0: 1 + 100 + 1000,
        1: 101,
        2: 1,
    }
    assert (fields["@ids/Site"].tolist(), fields["Site/visits"].tolist()) == ([1], [3])
    assert (sent["@rows/Word"].tolist(), sent["Word/count"].tolist()) == ([0], [31])
    assert {name.split("/")[1] for name in sent if name.startswith("Network")} == {"1"}
    assert changed_fields(engine, 3, 3)["@ids/Site"].tolist() == []  # sent once


def test_the_graphs_own_arrays_are_not_touched() -> None:
    g = visits()
    engine = begin(gridml.Program(lambda: g, visit), g)
    engine.train(0, 4, 1.0)
    assert g.tables["Visit"].columns["done"].tolist() == [0, 0, 0, 0]
    assert g.tables["Word"].columns["count"].tolist() == [1, 2, 3]


class Team(gridml.Vertex):
    points = gridml.array("int64")
    aggregate = gridml.add()


class Match(gridml.Vertex):
    home = gridml.edge(Team)
    away = gridml.edge(Team)


@gridml.update(batch=10)
def play(matches: gridml.Batch[Match], home: gridml.Batch[Team], away: gridml.Batch[Team]) -> None:
    np.add.at(home.points, matches.home.index, 3)
    np.add.at(away.points, matches.away.index, 1)


def test_a_vertex_that_two_arguments_hold_gets_both_changes() -> None:
    g = gridml.Graph()
    g.add(Team, points=np.zeros(3, int))
    g.add(Match, home=[0, 1, 0, 2], away=[1, 0, 2, 0])
    engine = begin(gridml.Program(lambda: g, play), g)
    engine.train(0, 4, 1.0)
    assert push(engine)["Team/points"].tolist() == [3 * 2 + 2, 3 + 1, 3 + 1]


class Person(gridml.Vertex):
    wealth = gridml.array("float64", mutable=True)
    friends = gridml.edge("Person")
    hub = gridml.edge(Word)


@gridml.update(batch=10)
def share(people: gridml.Batch[Person], friends: gridml.Batch[Person]) -> None:
    wealth = friends.wealth.copy()
    lengths = np.diff(people.friends.offsets)
    people.wealth = np.add.reduceat(wealth[people.friends.index], people.friends.offsets[:-1]) / lengths


def test_reading_neighbours_of_ones_own_type_does_not_undo_what_f_wrote() -> None:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(1, int))
    friends = gridml.csr([0, 2, 3, 4], [1, 2, 0, 0])
    g.add(Person, wealth=np.array([1.0, 2.0, 4.0]), friends=friends, hub=[0, 0, 0])
    engine = begin(gridml.Program(lambda: g, share), g)
    engine.train(0, 3, 1.0)
    assert changed_fields(engine, 0, 3)["Person/wealth"].tolist() == [3.0, 1.0, 1.0]


# --- supersteps


class Page(gridml.Vertex):
    rank = gridml.array("float64", mutable=True)
    links = gridml.edge("Page")


@gridml.update
def walk(page: Page) -> None:
    page.rank = sum(p.rank for p in page.links)


@gridml.update
def meddle(page: Page) -> None:
    for p in page.links:
        p.rank = 0.0


@gridml.update
def look_far(page: Page) -> None:
    page.rank = len(page.links[0].links)


def ring() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Page, rank=np.array([1.0, 2.0, 4.0]), links=[[1], [2], [0]])
    return g


def test_without_replicas_f_sees_its_neighbours_as_the_superstep_began() -> None:
    g = ring()
    engine = begin(gridml.Program(lambda: g, walk), g)
    engine.train(0, 3, 1.0)
    assert changed_fields(engine, 0, 3)["Page/rank"].tolist() == [2.0, 4.0, 1.0]
    assert push(engine) == {}


@pytest.mark.parametrize(
    ("update", "message"),
    [(meddle, "as they were when the superstep began"), (look_far, r"Page\.links of this vertex")],
)
def test_what_a_superstep_does_not_allow_says_so(update: Any, message: str) -> None:
    g = ring()
    engine = begin(gridml.Program(lambda: g, update), g)
    with pytest.raises(BatchFailed) as caught:
        engine.train(0, 1, 1.0)
    assert isinstance(caught.value.__cause__, ProgramError)
    with pytest.raises(ProgramError, match=message):
        raise caught.value.__cause__


# --- where batches end


def friends(sizes: list[int]) -> gridml.Graph:
    """Chains of people, one chain per size."""
    g = gridml.Graph()
    g.add(Word, count=np.zeros(1, int))
    starts = np.cumsum([0, *sizes])
    last = set((starts[1:] - 1).tolist())
    degrees = [0 if i in last else 1 for i in range(starts[-1])]
    offsets, ends = np.cumsum([0, *degrees]), [i + 1 for i in range(starts[-1]) if i not in last]
    g.add(Person, wealth=np.zeros(starts[-1]), friends=gridml.csr(offsets, ends), hub=np.zeros(starts[-1], int))
    return g


@given(st.lists(st.integers(1, 7), min_size=1, max_size=10), st.integers(1, 9), st.data())
def test_batches_cover_everything_and_cut_only_components_larger_than_themselves(
    sizes: list[int], size: int, data: st.DataObject
) -> None:
    g = friends(sizes)
    engine = begin(gridml.Program(lambda: g, share), g)
    chunk = engine.chunk
    assert chunk is not None
    assert chunk.ends is not None
    ends = [0, *chunk.ends.tolist()]
    stop = data.draw(st.sampled_from(ends[1:]))  # the lease may have been cut between two components
    at, large = 0, 0
    while at < stop:
        end, whole = engine.batch_end(at, size, stop)
        assert at < end <= stop
        assert end - at <= size
        assert whole == (end in ends)
        inside = [e for e in ends if at < e < end]
        if not whole:
            assert not inside
            large += 1
            owner = max(e for e in ends if e <= at), min(e for e in ends if e >= end)
            assert owner[1] - owner[0] > size
        else:
            more = [e for e in ends if end < e <= min(at + size, stop)]
            assert not more  # as many whole components as possible
        at = end
    if max(sizes) <= size:
        assert large == 0


def test_without_components_batches_are_full_but_the_last() -> None:
    engine = begin(gridml.Program(points, fit_many), points())
    assert engine.batch_end(0, 8, 12) == (8, True)
    assert engine.batch_end(8, 8, 12) == (12, True)


# --- snapshots and newer replicas


def test_a_snapshot_is_a_copy() -> None:
    g = points()
    engine = begin(gridml.Program(lambda: g, fit_many), g)
    engine.train(0, 4, 1.0)
    snapshot = engine.snapshot()
    held = {name: tensor.copy() for name, tensor in encode_replica(engine.wire(snapshot)).items()}
    engine.train(4, 8, 1.0)
    for name, tensor in encode_replica(engine.wire(snapshot)).items():
        np.testing.assert_array_equal(tensor, held[name])


def moved(part: ReplicaPart, by: float) -> Arrays:
    return {n: t if n.startswith("@") else (t + by).astype(t.dtype) for n, t in encode_replica(part).items()}


def test_rebase_keeps_what_was_trained_since_the_push() -> None:
    g = points()
    engine = begin(gridml.Program(lambda: g, fit_many), g)
    engine.train(0, 4, 1.0)
    snapshot = engine.snapshot()
    engine.train(4, 8, 1.0)
    local = {name: tensor.copy() for name, tensor in views(engine).items()}
    pushed, newest = encode_replica(snapshot.replica), moved(snapshot.replica, 0.25)
    engine.rebase(snapshot, decode_replica(newest), 2)
    for name, view in views(engine).items():
        np.testing.assert_array_equal(view, local[name] - pushed[name] + newest[name])
    assert set(push(engine)) == set(local)  # the training since then is still to be pushed


def test_restart_takes_the_replica_as_it_is_and_forgets_local_work() -> None:
    g = points()
    engine = begin(gridml.Program(lambda: g, fit_many), g)
    newest = moved(engine.snapshot().replica, 1.0)
    engine.train(0, 4, 1.0)
    engine.restart(decode_replica(newest))
    for name, view in views(engine).items():
        np.testing.assert_array_equal(view, newest[name])
    assert push(engine) == {}


@pytest.mark.parametrize("some", [[0, 1, 2], [2, 0], [1], []])
def test_rows_are_rebased_where_the_reply_brings_them(some: list[int]) -> None:
    g = gridml.Graph()
    g.add(Word, count=np.array([10, 20, 30, 40]))
    g.add(Text, words=gridml.csr([0, 2, 4], [3, 0, 1, 1], [1, 2, 3, 4]), total=np.zeros(2, int))
    engine = begin(gridml.Program(lambda: g, count_many), g, [1, 0])
    assert engine.chunk is not None
    ids = engine.chunk.touched()["Word"]
    assert ids.tolist() == [0, 1, 3]
    engine.train(0, 1, 1.0)  # text 1: word 1 twice
    snapshot = engine.snapshot()
    sent = encode_replica(engine.wire(snapshot))
    assert (sent["@rows/Word"].tolist(), sent["Word/count"].tolist()) == ([1], [27])
    engine.train(1, 2, 1.0)  # text 0: words 3 and 0
    newest = np.array([100, 127, 400])
    arrived = {"@rows/Word": ids[sorted(some)], "Word/count": newest[sorted(some)]}
    engine.rebase(snapshot, decode_replica(arrived), 2)
    sent = push(engine)
    expected = np.array([12, 27, 41])
    expected[some] = (newest + np.array([2, 0, 1]))[some]
    assert dict(zip(sent["@rows/Word"].tolist(), sent["Word/count"].tolist(), strict=True)) == {
        0: expected[0],
        3: expected[2],
    }


def test_rows_that_the_chunk_does_not_touch_are_left_out() -> None:
    g = gridml.Graph()
    g.add(Word, count=np.array([10, 20, 30, 40]))
    g.add(Text, words=gridml.csr([0, 2, 4], [3, 0, 1, 1], [1, 2, 3, 4]), total=np.zeros(2, int))
    engine = begin(gridml.Program(lambda: g, count_many), g, [0])
    arrived = {"@rows/Word": np.arange(4), "Word/count": np.arange(4) * 100, "@rows/Other": np.arange(2)}
    engine.restart(decode_replica(arrived))
    engine.train(0, 1, 1.0)
    sent = push(engine)
    assert (sent["@rows/Word"].tolist(), sent["Word/count"].tolist()) == ([0, 3], [2, 301])
    engine.restart(decode_replica({"@rows/Word": np.array([1, 3]), "Word/count": np.array([7, 8])}))
    engine.train(0, 1, 1.0)
    assert push(engine)["Word/count"].tolist() == [4, 9]


def test_tied_weights_are_rebased_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 1)
            self.two = self.one

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            summed: torch.Tensor = self.one(x) + self.two(x)
            return summed

    declared = describe(Network).modules["model"]
    factory, declared.factory = declared.factory, Tied
    try:
        g = points()
        engine = begin(gridml.Program(lambda: g, fit_many), g)
        engine.train(0, 4, 1.0)
        snapshot = engine.snapshot()
        engine.rebase(snapshot, decode_replica(moved(snapshot.replica, 1.0)), 2)
        pushed = encode_replica(snapshot.replica)
        for name, tensor in copies(engine).items():
            np.testing.assert_array_equal(tensor, pushed[name] + np.float32(1.0))
    finally:
        declared.factory = factory


def test_the_next_chunk_starts_from_the_same_modules_and_optimisers() -> None:
    g = points()
    program = gridml.Program(lambda: g, fit_many)
    whole = begin(program, g)
    for at in (0, 4, 8):
        whole.train(at, at + 4, 1.0)
    parts = begin(program, g, [0, 1, 2, 3])
    parts.train(0, 4, 1.0)
    for vertices in ([4, 5, 6, 7], [8, 9, 10, 11]):
        parts.begin(cut(g, "Point", np.array(vertices), None, None, bsp=False))
        parts.train(0, 4, 1.0)
    left, right = push(whole), push(parts)
    for name, tensor in left.items():
        assert tensor.tobytes() == right[name].tobytes()


# --- networks are added and released


def adam() -> type[gridml.Vertex]:
    class Expert(gridml.Vertex):
        model = gridml.module(linear, partial(torch.optim.Adam, lr=0.05))

    return Expert


Expert = adam()


class Case(gridml.Vertex):
    x = gridml.array("float32", (3,))
    expert = gridml.edge(Expert)


@gridml.update(batch=4)
def fit_experts(cases: gridml.Batch[Case], expert: Expert) -> None:  # type: ignore[valid-type]
    expert.step((expert.model(cases.x) ** 2).sum())  # type: ignore[attr-defined]


def cases() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Expert, 3)
    x = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)
    g.add(Case, x=x, expert=np.arange(12) // 4)
    return g


def at_expert(engine: Engine, g: gridml.Graph, which: int) -> None:
    engine.begin(cut(g, "Case", np.arange(4 * which, 4 * which + 4), None, None, bsp=False))


def test_released_networks_are_freed() -> None:
    g = cases()
    engine = begin(gridml.Program(cases, fit_experts), g)
    engine.train(0, 12, 1.0)
    at_expert(engine, g, 1)
    made = engine._modules["Expert"]._made
    weights = [weakref.ref(made[which].modules["model"][0].weight) for which in range(3)]
    arrays = [weakref.ref(engine._views["Expert", which][f"Expert/{which}/model/0.weight"]) for which in range(3)]
    gc.disable()
    try:
        engine.keep_only({("Expert", 1)})
        assert [ref() is None for ref in weights] == [ref() is None for ref in arrays] == [True, False, True]
    finally:
        gc.enable()
    assert {key for key in engine.snapshot().replica.modules} == {("Expert", 1)}
    engine.train(0, 4, 1.0)
    assert {name.split("/")[1] for name in push(engine)} == {"1"}


@pytest.mark.parametrize("spoilt", [False, True])
def test_who_has_a_network_again_goes_on_as_if_it_had_stayed(spoilt: bool) -> None:
    g = cases()
    program = gridml.Program(cases, fit_experts)
    stayed, left = begin(program, g), begin(program, g)
    left.restart(ReplicaPart(stayed.snapshot().replica.modules))
    for engine in (stayed, left):
        for which, rate in ((0, 1.0), (1, 0.5)):
            at_expert(engine, g, which)
            engine.train(0, 4, rate)
    master = ReplicaPart(left.snapshot().replica.modules)
    left.keep_only({("Expert", 2)})
    if spoilt:
        left.forget_optimisers()
    at_expert(left, g, 0)
    left.restart(master)
    at_expert(stayed, g, 0)
    for engine in (stayed, left):
        engine.train(0, 4, 0.25)
    trained, again = push(stayed), push(left)
    same = [tensor.tobytes() == trained[name].tobytes() for name, tensor in again.items()]
    assert len(same) == 4
    assert not any(same) if spoilt else all(same)
