"""What to look at next, on states small enough to work out what is expected by hand."""

from collections import Counter

import numpy as np
import pytest

from review_runs import small_run
from selex.review.core.decisions import Decision
from selex.review.core.mixed import UNKNOWN, Mixture, mixture
from selex.review.core.session import Review
from selex.review.core.state import State
from selex.review.core.suggest import AGREEMENT, ELSE, TOGETHER, TWINS, all_ideas, ideas
from selex.runs.results import Results


def state_of(category, confidence, runner_up, n_known=2, labelled=(), names=5):
    """A state on made-up results."""
    called = [f"known-{i}" if i < n_known else f"novel-{i}" for i in range(names)]
    files, held = [f"{row}" for row in range(len(category))], np.zeros(len(category), dtype=bool)
    held[list(labelled)] = True
    return State(
        Results(files, called, n_known, np.array(category), held, np.array(confidence, float), np.array(runner_up))
    )


def test_ideas_end_when_all_is_settled(tmp_path):
    review = Review(small_run(tmp_path).folder)
    found = ideas(review.state, 10)
    numbers = [number for idea in found for number in idea.categories]
    assert len(set(numbers)) == len(numbers)
    assert found
    for category in range(5):
        review.decide(Decision("confirm", category=category), review.version)
        review.decide(Decision("name", category=category, name=f"name {category}"), review.version)
    assert ideas(review.state, 10) == []


def test_a_name_settles_what_is_expected_to_be_right():
    state = state_of([2] * 10 + [3] * 8, [0.5] * 10 + [0.9] * 8, [3] * 10 + [2] * 8)
    first, second = (idea for idea in ideas(state, 9) if idea.kind == "name")
    assert (first.categories, first.images) == ((3,), 7), "8 images at 90 %, before 10 at 50 %"
    assert (second.categories, second.images) == ((2,), 5)
    state.apply(Decision("name", category=3, name="x"))
    assert [idea.categories for idea in ideas(state, 9) if idea.kind == "name"] == [(2,)]


def test_doubtful_images_near_a_named_category_are_to_be_checked():
    state = state_of([0] * 12, [0.2] * 10 + [0.9] * 2, [1] * 12)
    idea = next(idea for idea in all_ideas(state) if idea.kind == "doubtful")
    assert (idea.categories, idea.rows, idea.images) == ((0, 1), tuple(range(10)), 2), "a quarter of 10 · 0.8"
    state.apply(Decision("confirm", rows=tuple(range(10))))
    assert "doubtful" not in {idea.kind for idea in all_ideas(state)}


def test_a_large_category_is_to_be_split_where_halves_of_it_agree_about_its_parts():
    sizes, sure, other = (40, 90, 20, 20, 20), (0.5, 0.5, 0.4, 0.4, 0.4), (1, 0, 0, 0, 0)
    state, seen = state_of(*(np.repeat(values, sizes) for values in (range(5), sure, other))), []

    def look(rows):
        seen.append((int(state.category[rows[0]]), len(rows)))
        return Mixture(3, 0.8) if len(rows) > 50 else Mixture(2, AGREEMENT - 0.01)

    splits = [idea for idea in all_ideas(state, look=look) if idea.kind == "split"]
    assert seen == [(1, 90), (0, 40)], "named and large ones, those with most that may be wrong first"
    assert [(idea.categories, idea.decisions, idea.parts) for idea in splits] == [((1,), 3, 3)]
    assert splits[0].gain == pytest.approx(0.8 * 45)
    assert splits[0].images == 36
    assert splits[0].reason == "4.5 times as large as usual: looks like 3 categories"
    assert {idea.parts for idea in all_ideas(state, look=look) if idea.kind != "split"} == {None}
    state.apply(Decision("confirm", category=1))
    assert "split" not in {idea.kind for idea in all_ideas(state, look=look)}, "nothing is left to settle"
    assert "split" not in {idea.kind for idea in all_ideas(state)}


UNLABELLED = np.full(400, -1)


def several(count, each, apart=3.0, dims=16, seed=0):
    """Rows of so many kinds, so many of each."""
    kinds = apart * np.eye(dims)[:count]
    return np.repeat(kinds, each, axis=0) + np.random.default_rng(seed).normal(0, 0.5, (count * each, dims))


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("each", [12, 80])
def test_a_mixture_falls_into_its_kinds(count, each):
    rows = several(count, each)
    found = mixture(rows, np.arange(len(rows)), UNLABELLED)
    assert found.parts == count
    assert found.agreement > 0.9
    assert mixture(rows, np.arange(len(rows)), UNLABELLED) == found, "the same every time"


def test_what_is_one_kind_has_no_parts_that_halves_agree_about():
    for seed in range(10):
        rows = several(1, 60, seed=seed)
        assert mixture(rows, np.arange(60), UNLABELLED).agreement < AGREEMENT
    assert mixture(rows, np.arange(5), UNLABELLED) == UNKNOWN, "too few to tell"
    assert mixture(np.ones((40, 3)), np.arange(40), UNLABELLED).agreement == 0, "all the same"


def test_one_that_swallowed_another_is_to_be_split():
    rows = np.concatenate([several(1, 40), several(2, 12)[12:]])
    found = mixture(rows, np.arange(52), UNLABELLED)
    assert (found.parts, found.agreement > AGREEMENT) == (2, True)


def test_labels_that_are_in_all_parts_are_not_together():
    rows = several(2, 40)
    kinds, none = np.repeat([0, 1], 40), np.full(80, -1)
    assert mixture(rows, np.arange(80), none).together is None
    for given, together in ((kinds, 1), (np.where(kinds == 0, 0, -1), 1), (np.tile([0, -1], 40), 0)):
        assert mixture(rows, np.arange(80), given).together == pytest.approx(together, abs=0.05)


def test_a_split_promises_little_where_labels_do_not_follow_the_parts():
    state = state_of([0] * 12 + [1] * 90 + [2] * 12, [0.5] * 114, [1] * 12 + [0] * 90 + [1] * 12)

    def gain(together):
        found = all_ideas(state, look=lambda rows: Mixture(2, 0.8, together))
        return sum(idea.gain for idea in found if idea.kind == "split")

    assert gain(None) == gain(TOGETHER) == pytest.approx(0.8 * 45)
    assert gain(TOGETHER - 0.01) == pytest.approx(ELSE * 0.8 * 45)


def test_labels_that_look_wrong_are_shown_until_somebody_has_spoken_of_them():
    state = state_of([0] * 6 + [1] * 6, [0.001, 0.3, *[0.9] * 10], [1] * 6 + [0] * 6, labelled=range(12))
    idea = next(idea for idea in all_ideas(state) if idea.kind == "labels")
    assert (idea.categories, idea.rows, idea.images) == ((0,), (0,), 1), "0.3 is no reason to doubt a label"
    assert "labels" not in {idea.kind for idea in all_ideas(state, checked=[0])}
    state.apply(Decision("move", rows=(0,), category=1))
    assert "labels" not in {idea.kind for idea in all_ideas(state)}


def test_twins_doubt_each_other():
    one_way = state_of([1] * 10 + [2] * 10, [0.99] * 10 + [0.7] * 10, [0] * 10 + [1] * 10)
    assert [idea.kind for idea in all_ideas(one_way) if idea.categories[-1] == 2] == ["name"]
    both = state_of([1] * 10 + [2] * 10, [0.7] * 20, [2] * 10 + [1] * 10)
    idea = next(idea for idea in all_ideas(both) if idea.kind == "merge")
    assert (idea.categories, idea.images) == ((1, 2), 7), "merged or named, seven of ten have a name then"


def test_the_next_best_of_a_merged_category_is_what_it_was_merged_into():
    state = state_of([0] * 12 + [1] * 4 + [2] * 4, [0.2] * 12 + [0.9] * 8, [2] * 12 + [0] * 8)
    assert not [idea for idea in all_ideas(state) if idea.kind == "doubtful"], "novel-2 has no name"
    state.apply(Decision("merge", categories=(1, 2)))
    idea = next(idea for idea in all_ideas(state) if idea.kind == "doubtful")
    assert idea.categories == (0, 1)


@pytest.mark.parametrize("seed", range(30))
def test_what_may_be_merged_is_what_plain_loops_find(seed):
    rng = np.random.default_rng(seed)
    count, n = 4, 30
    category, runner_up = rng.integers(0, count, n), rng.integers(-1, count, n)
    confidence = rng.random(n)
    state = state_of(category, confidence, runner_up, names=count)
    doubt = Counter[tuple[int, int]]()
    for own, other, sure in zip(category.tolist(), runner_up.tolist(), confidence.tolist(), strict=True):
        if other not in (-1, own):
            doubt[own, other] += (1 - sure) / np.sum(category == own)
    expected = {}
    for novel in (2, 3):
        shares = {
            doubt[novel, known]: known for known in (0, 1) if min(doubt[novel, known], doubt[known, novel]) >= TWINS
        }
        if shares:
            expected[novel] = shares[max(shares)]
    found = {idea.categories[1]: idea.categories[0] for idea in all_ideas(state) if idea.kind == "merge"}
    gains = np.bincount(category, confidence, minlength=count)
    assert found == {novel: known for novel, known in expected.items() if gains[novel] >= 0.5}
