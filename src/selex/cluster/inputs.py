"""What users of the estimators hand over: features of any kind, names of categories of any type, seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor

from selex.errors import InputError
from selex.types import UNLABELLED


def features_of(estimator: Any, X: Any, reset: bool, finite: bool = False) -> Any:
    """`X` checked by scikit-learn, or by ourselves where it is a tensor that must stay on its device."""
    if not isinstance(X, Tensor):
        return validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=finite)
    if X.ndim != 2:
        raise InputError(f"features must be a table, rows × dimensions, not of shape {tuple(X.shape)}")
    if reset:
        estimator.n_features_in_ = X.shape[1]
    elif X.shape[1] != estimator.n_features_in_:
        raise InputError(f"features have {X.shape[1]} columns, the fitted data had {estimator.n_features_in_}")
    return X


def encode(y: Any, n: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Names of the known categories in sorted order, and for every row the index of its name or -1.

    Unlabelled rows are -1, None, NaN or an empty string, whichever the type of `y` allows.
    """
    if y is None:
        return np.empty(0, dtype=np.int64), np.full(n, UNLABELLED)
    names = _as_given(y)
    if names.shape not in ((n,), (n, 1)):
        raise InputError(f"labels have shape {names.shape} for {n} rows: one label per row, -1 where unknown")
    names = names.reshape(n)
    unlabelled = _unlabelled(names)
    labels = np.full(n, UNLABELLED)
    given = names[~unlabelled]
    try:
        classes, labels[~unlabelled] = np.unique(given, return_inverse=True)
    except TypeError:  # names of several types, which have no order among them: sort by what they look like
        classes, labels[~unlabelled] = _unique_mixed(given)
    return classes, labels


def _as_given(y: Any) -> NDArray[Any]:
    """Labels as an array; a list of several types keeps them, where numpy would make them all text."""
    if isinstance(y, Tensor):
        return np.asarray(y.detach().cpu())
    if hasattr(y, "__array__"):
        return np.asarray(y)
    names = np.empty(len(y), dtype=object)
    names[:] = y
    return np.array(y) if len({type(name) for name in y}) == 1 else names


def _unlabelled(names: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries say that there is no label."""
    if names.dtype.kind in "iuf":
        return np.isin(names, -1) | np.isnan(names)
    if names.dtype.kind in "US":
        return np.isin(names, np.array(["", "-1"], dtype=names.dtype.kind))  # numpy writes -1 as "-1" among strings
    return np.array([_is_missing(name) for name in names.tolist()], dtype=bool)


def _is_missing(name: Any) -> bool:
    try:
        return name is None or bool(name != name) or name in (-1, "", "-1")
    except TypeError:  # pandas' NA is neither equal nor unequal to itself
        return True


def _unique_mixed(names: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    classes = sorted(set(names.tolist()), key=lambda name: (type(name).__name__, str(name)))
    index = {name: i for i, name in enumerate(classes)}
    found = np.empty(len(classes), dtype=object)
    found[:] = classes
    return found, np.array([index[name] for name in names.tolist()], dtype=np.int64)


def generator_of(random_state: Any) -> np.random.Generator:
    """A numpy generator from a seed, a generator (used as it is) or a legacy RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(1 << 31))
    return np.random.default_rng(random_state)
