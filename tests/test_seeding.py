import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import draw_apart as plain_draw_apart
from selex.cluster.rows import Rows
from selex.cluster.seeding import draw_apart, draw_spread


@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(1, 12), st.integers(1, 8), st.booleans())
def test_apart_is_one_draw_after_the_other(seed, n_anchors, count, size, tight):
    rng = np.random.default_rng(seed)
    x, anchors = rng.standard_normal((30, 2)), rng.standard_normal((n_anchors, 2))
    pool = np.sort(rng.choice(30, 20, replace=False))
    rows = Rows(x, memory=1 if tight else 1 << 30)  # a tight budget tries candidates one by one
    chosen = draw_apart(
        rows, torch.from_numpy(anchors) - rows.shift, torch.from_numpy(pool), count, size, np.random.default_rng(7)
    )
    order = pool[np.random.default_rng(7).permutation(20)]
    assert chosen.tolist() == plain_draw_apart(x, anchors, order.tolist(), count, size)


def test_apart_stops_when_nobody_is_left():
    rows = Rows(np.arange(10.0)[:, None])
    chosen = draw_apart(rows, rows.take(slice(0, 0)), torch.arange(10), 5, 10, np.random.default_rng(0))
    assert len(chosen) == 1


def test_one_draw_falls_into_each_tight_blob():
    x = np.repeat(np.arange(6.0) * 10, 5)[:, None] + np.random.default_rng(1).normal(0, 0.01, (30, 1))
    rows = Rows(x)
    for seed in range(20):
        chosen = draw_apart(rows, rows.take(slice(0, 0)), torch.arange(30), 6, 5, np.random.default_rng(seed))
        assert sorted((chosen // 5).tolist()) == [0, 1, 2, 3, 4, 5]


def test_spread_draws_by_squared_distance():
    # rows at 0, 1 and 3, an anchor at 0: the odds are 0 : 1 : 9
    rows = Rows(np.array([[0.0], [1], [3]]))
    anchor = torch.zeros(1, 1, dtype=torch.float64) - rows.shift
    rng = np.random.default_rng(0)
    drawn = [int(draw_spread(rows, anchor, torch.arange(3), 1, rng)) for _ in range(2000)]
    assert 0 not in drawn
    assert 0.87 < drawn.count(2) / 2000 < 0.93


def test_spread_never_draws_a_row_twice():
    rows = Rows(np.zeros((5, 2)))  # all alike: every distance is zero
    chosen = draw_spread(rows, rows.take(slice(0, 0)), torch.arange(5), 5, np.random.default_rng(0))
    assert sorted(chosen.tolist()) == [0, 1, 2, 3, 4]
