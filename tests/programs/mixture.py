"""All features at once: two networks, integer counts, components of two local types, mutable local fields, weights."""

from functools import partial

import numpy as np
import torch
from torch import nn

import gridml

THREADS, WORDS, EPOCHS = 300, 40, 3


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Network(gridml.Vertex):
    model = gridml.module(lambda: nn.Linear(3, 1), partial(torch.optim.SGD, lr=0.02))


class Thread(gridml.Vertex):
    posts = gridml.array("int64", mutable=True)


class Post(gridml.Vertex):
    x = gridml.array("float32", (3,))
    visits = gridml.array("int64", mutable=True)
    thread = gridml.edge(Thread)  # local: the posts of a thread are one component
    network = gridml.edge(Network)
    words = gridml.edge(Word, weight="int64")


@gridml.update(batch=16)
def train(
    posts: gridml.Batch[Post],
    thread: gridml.Batch[Thread],
    network: Network,
    words: gridml.Batch[Word],
) -> None:
    posts.visits += 1
    thread.posts.index_add_(0, posts.thread.index, torch.ones(len(posts), dtype=torch.int64))
    words.count.index_add_(0, posts.words.index, posts.words.weight)
    target = posts.x.sum(1, keepdim=True) * (1 if network.get_id().index == 0 else -1)
    network.step(((network.model(posts.x) - target) ** 2).mean())


def content() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(thread of each post, offsets, words and weights of the posts)."""
    rng = np.random.default_rng(5)
    thread = rng.permutation(np.repeat(np.arange(THREADS), rng.integers(1, 7, THREADS)))
    degrees = rng.integers(0, 6, len(thread))
    offsets = np.concatenate([[0], degrees.cumsum()])
    return thread, offsets, rng.integers(0, WORDS, offsets[-1]), rng.integers(1, 9, offsets[-1])


def graph() -> gridml.Graph:
    thread, offsets, words, weight = content()
    g = gridml.Graph()
    g.add(Word, count=np.zeros(WORDS, np.int64))
    g.add(Network, 2)
    g.add(Thread, posts=np.zeros(THREADS, np.int64))
    g.add(
        Post,
        x=np.random.default_rng(6).normal(size=(len(thread), 3)).astype(np.float32),
        visits=np.zeros(len(thread), np.int64),
        thread=thread,
        network=thread % 2,
        words=gridml.csr(offsets, words, weight),
    )
    return g


def evaluate(
    words: gridml.Batch[Word],
    threads: gridml.Batch[Thread],
    posts: gridml.Batch[Post],
    networks: gridml.Batch[Network],
) -> dict[str, object]:
    thread, _, word, weight = content()
    expected = EPOCHS * np.bincount(word, weight, WORDS).astype(np.int64)
    return {
        "miscounted": np.abs(words.count.numpy() - expected).sum(),
        "visits": [posts.visits.min().item(), posts.visits.max().item()],
        "misposted": np.abs(threads.posts.numpy() - EPOCHS * np.bincount(thread, minlength=THREADS)).sum(),
        "weights": [network.model.weight.mean().item() for network in networks],
    }


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)
