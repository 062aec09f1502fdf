"""Public data sets: fetched once, verified against pinned checksums, kept as memory-mapped arrays.

The sources of a data set are tried in order (the cache, a folder of the user, the network, a package). The first whose
decoded arrays have the pinned SHA-256 is used.
"""

from gridml.datasets.graphs import Corpus, Ratings, SnapGraph, corpus, movielens, snap
from gridml.datasets.pinned import Arrays, Pin, Report, Source, Wanted, folders, obtain
from gridml.datasets.public import CIFAR10, CIFAR10_CLASSES, MNIST, Split, Text, cifar10, king_james, mnist

__all__ = ["CIFAR10", "CIFAR10_CLASSES", "MNIST", "Arrays", "Corpus", "Pin", "Ratings", "Report", "SnapGraph", "Source",
           "Split", "Text", "Wanted", "cifar10", "corpus", "folders", "king_james", "mnist", "movielens", "obtain",
           "snap"]  # fmt: skip
