"""libmf, a peer: https://github.com/cjlin1/libmf, compiled to a shared library, called by ctypes.

Chin et al., "A Learning-rate Schedule for Stochastic Gradient Methods to Matrix Factorization", PAKDD 2015. Its source
is on PyPI, where it is built without AVX; with AVX it is twice as fast:

    pip download --no-deps --no-binary :all: libmf && tar xf libmf-*.tar.gz
    g++ -shared -fPIC -O3 -march=native -mavx2 -DUSEAVX -std=c++11 -pthread libmf-*/src_cpp/mf.cpp -o libmf.so
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.graph_programs.ratings import Ratings

Array = NDArray[Any]
NODE = np.dtype([("u", np.int32), ("v", np.int32), ("r", np.float32)])
POINTER = ctypes.POINTER(ctypes.c_float)
ITERATIONS = "nr_iters"


class _Problem(ctypes.Structure):
    _fields_ = (("m", ctypes.c_int), ("n", ctypes.c_int), ("nnz", ctypes.c_longlong), ("R", ctypes.c_void_p))


class _Parameter(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("fun", "k", "nr_threads", "nr_bins", ITERATIONS)),
        *((name, ctypes.c_float) for name in ("lambda_p1", "lambda_p2", "lambda_q1", "lambda_q2", "eta")),
        *((name, ctypes.c_bool) for name in ("do_nmf", "quiet", "copy_data")),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("fun", "m", "n", "k")),
        *(("b", ctypes.c_float), ("P", POINTER), ("Q", POINTER)),
    )


class Trained(NamedTuple):
    """What libmf made of ratings."""

    cpu_s: float  #: of `mf_train`, which sorts the ratings into blocks and trains
    rmse: float


def train(library: Path, ratings: Ratings, rank: int, iterations: int, ridge: float, rate: float) -> Trained:
    """Train by libmf on one thread."""
    mf = ctypes.CDLL(str(library.resolve()))
    mf.mf_get_default_param.restype = _Parameter
    mf.mf_train.restype = ctypes.POINTER(_Model)
    mf.mf_train.argtypes = [ctypes.POINTER(_Problem), _Parameter]
    nodes = np.empty(len(ratings.stars), NODE)
    nodes["u"], nodes["v"] = np.repeat(np.arange(ratings.users), np.diff(ratings.offsets)), ratings.item
    nodes["r"] = ratings.stars
    problem = _Problem(ratings.users, ratings.items, len(nodes), nodes.ctypes.data)
    options = mf.mf_get_default_param()
    options.k, options.nr_threads, options.nr_iters, options.eta, options.quiet = rank, 1, iterations, rate, True
    options.lambda_p2 = options.lambda_q2 = ridge
    began = time.process_time()
    model = mf.mf_train(ctypes.byref(problem), options).contents
    cpu_s = time.process_time() - began
    p, q = _rows(model.P, model.m, model.k), _rows(model.Q, model.n, model.k)
    guess = np.nan_to_num(np.einsum("nk,nk->n", p[ratings.test_user], q[ratings.test_item]), nan=model.b)
    return Trained(cpu_s, ratings.rmse(guess))


def _rows(values: Any, count: int, rank: int) -> Array:
    return np.ctypeslib.as_array(values, (count, rank))
