"""Public data sets: fetched once, verified against pinned checksums, kept as memory-mapped arrays.

A data set is one file here. Its places are tried in order (the cache, a folder of the user's, where it lives on the
network, a package), and the first whose decoded arrays have the pinned SHA-256 is taken.
"""

from gridml.datasets.cifar_images import CIFAR10, CIFAR10_CLASSES, cifar10
from gridml.datasets.king_james_text import Text, king_james
from gridml.datasets.mnist_digits import MNIST, mnist
from gridml.datasets.pinned import Pin, Wanted, obtain
from gridml.datasets.sources import Arrays, Report, Source, Split, folders

__all__ = [
    "CIFAR10",
    "CIFAR10_CLASSES",
    "MNIST",
    "Arrays",
    "Pin",
    "Report",
    "Source",
    "Split",
    "Text",
    "Wanted",
    "cifar10",
    "folders",
    "king_james",
    "mnist",
    "obtain",
]
