"""What to look at next, on states small enough to work out what is expected by hand."""

from collections import Counter

import numpy as np
import pytest

from review_runs import small_run
from selex.review.core.decisions import Decision
from selex.review.core.session import Review
from selex.review.core.state import State
from selex.review.core.suggest import TWINS, all_ideas, ideas
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


def test_a_category_as_large_as_two_is_to_be_split_and_one_larger_still_is_not():
    sizes, sure, other = (40, 60, 20, 20, 20), (0.5, 0.5, 0.4, 0.4, 0.4), (1, 0, 0, 0, 0)
    state = state_of(*(np.repeat(values, sizes) for values in (range(5), sure, other)))
    splits = [idea for idea in all_ideas(state) if idea.kind == "split"]
    assert [(idea.categories, idea.gain, idea.decisions) for idea in splits] == [((0,), 3, 2)], "0.15 of 40 - 20"
    assert splits[0].images == splits[0].most == 20, "no more than half has another name than most have"
    state.apply(Decision("confirm", rows=tuple(range(25))))
    assert [idea.images for idea in all_ideas(state) if idea.kind == "split"] == [15], "nor more than is undecided"
    assert {idea.most for idea in all_ideas(state) if idea.kind != "split"} == {None}
    assert splits[0].reason == "2.0 times as large as usual: may be two"


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
