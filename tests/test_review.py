"""Decisions, the state they add up to, the ledger that keeps them, and what comes of them."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from commands import reseal
from review_runs import aside_files, labels_by_file, made_up_run, small_run
from selex.errors import InputError
from selex.review.core.decisions import FIELDS, Decision, Refused, alike_key
from selex.review.core.labels import labels_of
from selex.review.core.ledger import FILE, Ledger
from selex.review.core.outcome import compare, corrected, reviewed
from selex.review.core.overview import Overview, Space, parts_of
from selex.review.core.session import Conflict, Review
from selex.review.core.state import CONFIRMED, SET_ASIDE, UNDECIDED, UNSURE, State
from selex.review.core.timeline import DECIDE, REDO, UNDO, Event, Timeline
from selex.review.server.cards import image_card
from selex.runs.export import export
from selex.runs.results import Results


@pytest.fixture
def folder(tmp_path):
    return small_run(tmp_path).folder


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return Results.read(small_run(tmp_path_factory.mktemp("results")))


def snapshot(state):
    """Everything that a state is."""
    return state.category.tolist(), state.mark.tolist(), list(state.names), list(state.named), list(state.origin)


def decide(review, kind, **fields):
    return review.decide(Decision(kind, **fields), review.version)


ROWS, CATEGORIES = st.integers(0, 41), st.integers(0, 8)
NAMES = st.sampled_from(["robin", "wren", "novel-1", "known-0", " ", "<b>é</b>"])
SOME_ROWS = st.lists(ROWS, min_size=1, max_size=6).map(tuple)
DECISIONS = st.one_of(
    st.builds(Decision, st.just("name"), category=CATEGORIES, name=NAMES),
    st.builds(Decision, st.just("merge"), categories=st.lists(CATEGORIES, min_size=1, max_size=3).map(tuple)),
    st.builds(
        Decision, st.just("split"), category=CATEGORIES, parts=st.lists(SOME_ROWS, min_size=1, max_size=2).map(tuple)
    ),
    st.builds(Decision, st.just("move"), rows=SOME_ROWS, category=CATEGORIES),
    st.builds(Decision, st.just("move"), rows=SOME_ROWS, name=NAMES),
    st.builds(Decision, st.just("confirm"), category=CATEGORIES),
    *(st.builds(Decision, st.just(kind), rows=SOME_ROWS) for kind in ("confirm", "unsure", "set_aside", "clear")),
)


@given(st.lists(DECISIONS, max_size=25), st.data())
def test_any_decisions_undone_give_the_start_and_redone_the_end(results, decisions, data):
    timeline, states = Timeline(results), []
    for decision in decisions:
        before = snapshot(timeline.state)
        try:
            timeline.play(Event(DECIDE, decision))
            states.append(before)
        except Refused:
            assert snapshot(timeline.state) == before, "what is refused changes nothing"
    end = snapshot(timeline.state)
    back = data.draw(st.integers(0, len(states)))
    for before in reversed(states[len(states) - back :]):
        timeline.play(Event(UNDO))
        assert snapshot(timeline.state) == before
    for _ in range(back):
        timeline.play(Event(REDO))
    assert snapshot(timeline.state) == end
    again = Timeline(results)
    for played in timeline.played:
        again.play(
            Event(played.event.kind, played.event.decision and Decision.from_json(played.event.decision.to_json()))
        )
    assert snapshot(again.state) == end


@given(st.lists(st.one_of(DECISIONS, st.sampled_from([UNDO, REDO])), max_size=25))
def test_live_names_stay_unique_and_every_row_has_a_category(results, steps):
    timeline = Timeline(results)
    for step in steps:
        try:
            timeline.play(Event(step) if isinstance(step, str) else Event(DECIDE, step))
        except Refused:
            continue
        state = timeline.state
        live = [name for name, size in zip(state.names, state.sizes(), strict=True) if size]
        assert len(set(live)) == len(live)
        assert state.sizes().sum() == len(results)


def test_merging_may_name_what_comes_of_it(results):
    state = State(results)
    before = list(state.names)
    patch = state.apply(Decision("merge", categories=(3, 2), name="finch"))
    assert (state.names[3], state.named[3], patch.summary.partition(" (")[0]) == (
        "finch",
        True,
        f"merged {before[2]} into {before[3]}, now “finch”",
    )
    state.revert(patch)
    assert state.names == before
    assert state.apply(Decision("merge", categories=(3, 2), name=before[2])).added == 0, "one of theirs"
    with pytest.raises(Refused, match="already exists"):
        State(results).apply(Decision("merge", categories=(3, 2), name=before[1]))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Siamese cat", "siamese-cat", True),
        ("Mésange", "mesange", True),
        ("ＡＢＣ", "abc", True),
        ("Siamese", "Siamese 2", False),
        ("किताब", "कताब", False),
        ("+", "-", False),
    ],
)
def test_names_that_differ_in_case_and_signs_alone(one, other, same):
    assert (alike_key(one) == alike_key(other)) == same


def test_naming_holds_the_surer_half(results):
    state = State(results)
    rows = np.flatnonzero(state.category == 3)
    patch = state.apply(Decision("name", category=3, name=" robin\n 👩‍🔬 "))
    assert state.names[3] == "robin 👩‍🔬"
    assert patch.summary == "named novel-2 “robin 👩‍🔬”"
    held = rows[state.mark[rows] == CONFIRMED]
    assert len(held) == -(-len(rows) // 2)
    assert results.confidence[held].min() > results.confidence[np.setdiff1d(rows, held)].max()


def test_of_images_that_are_equally_sure_half_are_held(results):
    state = State(replace(results, confidence=np.ones(len(results.files))))
    state.apply(Decision("name", category=3, name="robin"))
    marks = state.mark[state.category == 3]
    assert (marks == CONFIRMED).sum() == -(-len(marks) // 2)


def test_merging_splitting_and_moving(results):
    state = State(results)
    two, three = np.flatnonzero(state.category == 2), np.flatnonzero(state.category == 3)
    state.apply(Decision("merge", categories=(2, 3)))
    assert set(np.flatnonzero(state.category == 2)) == {*two, *three}
    assert not state.sizes()[3]
    state.apply(Decision("split", category=2, parts=(tuple(three.tolist()),)))
    assert state.names[5] == "novel-4"
    assert np.array_equal(np.flatnonzero(state.category == 5), three)
    row = int(two[0])
    state.apply(Decision("move", rows=(row,), category=0))
    assert (state.category[row], state.mark[row]) == (0, CONFIRMED)


def test_marks_and_what_confirming_leaves_alone(results):
    state = State(results)
    first, second, *_ = np.flatnonzero(state.category == 4).tolist()
    state.apply(Decision("unsure", rows=(first,)))
    state.apply(Decision("set_aside", rows=(second,)))
    state.apply(Decision("confirm", category=4))
    assert state.mark[first] == UNSURE
    assert state.mark[second] == SET_ASIDE
    assert (state.mark[np.flatnonzero(state.category == 4)[2:]] == CONFIRMED).all()
    state.apply(Decision("clear", rows=(first, second)))
    assert state.mark[first] == state.mark[second] == UNDECIDED


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Decision("name", category=2, name="known-0"), "a category “known-0” already exists"),
        (Decision("name", category=2, name="  "), "needs a name"),
        (Decision("name", category=2, name="x" * 201), "200 characters"),
        (Decision("name", category=2, name="\ud800"), "must be text"),
        (Decision("name", category=2, name="a\x1b[2Jb"), "must be text"),
        (Decision("name", category=77, name="x"), "does not exist"),
        (Decision("merge", categories=(2, 2)), "two or more"),
        (Decision("move", rows=(99,), category=0), "there are images 0 to 39"),
        (Decision("move", rows=(1, 1), category=0), "named twice"),
        (Decision("split", category=2, parts=((0,),)), "must be in novel-1"),
    ],
)
def test_what_cannot_be_decided_is_refused(results, decision, message):
    state = State(results)
    before = snapshot(state)
    with pytest.raises(Refused, match=message):
        state.apply(decision)
    assert snapshot(state) == before


def test_a_split_must_leave_something(results):
    rows = tuple(np.flatnonzero(results.category == 2).tolist())
    with pytest.raises(Refused, match="some images must stay"):
        State(results).apply(Decision("split", category=2, parts=(rows,)))


@pytest.mark.parametrize("kind", FIELDS)
def test_a_decision_needs_its_fields(kind):
    with pytest.raises(Refused, match=f"{kind}: give "):
        Decision(kind)
    with pytest.raises(Refused, match="not a kind"):
        Decision("guess")


def test_decisions_outlast_the_process(review, folder):
    decide(review, "name", category=3, name="robin")
    decide(review, "set_aside", rows=(1, 2))
    review.step(UNDO, review.version)
    again = Review(folder)
    assert again.version == review.version == "1.3"
    assert snapshot(again.state) == snapshot(review.state)
    assert again.timeline.can_redo
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        assert [kind for (kind,) in db.execute("SELECT kind FROM events ORDER BY number")] == [
            "decide",
            "decide",
            "undo",
        ]
    db.close()


def test_two_processes_follow_each_other(review, folder):
    other = Review(folder)
    decide(review, "name", category=3, name="robin")
    with other.steady():
        assert other.state.names[3] == "robin"
    decide(other, "name", category=4, name="wren")
    with review.steady():
        assert review.state.names[4] == "wren"
    assert snapshot(other.state) == snapshot(review.state)


def test_decisions_on_an_old_version_are_made_only_where_they_do_not_meet(review):
    old = review.version
    decide(review, "name", category=3, name="robin")
    done = review.decide(Decision("name", category=4, name="wren"), old)
    assert done.missed == ["named novel-2 “robin”"]
    with pytest.raises(Conflict) as conflict:
        review.decide(Decision("merge", categories=(0, 3)), old)
    assert conflict.value.missed == ["named novel-2 “robin”", "named novel-3 “wren”"]
    with pytest.raises(Conflict):
        review.step(UNDO, old)
    for wrong in ("2.0", "1.9", "", "x"):
        with pytest.raises(Conflict):
            review.decide(Decision("confirm", category=0), wrong)
    assert review.version == "1.2"


def test_what_is_not_on_the_disk_has_not_happened(review, monkeypatch):
    def full(number, event):
        raise sqlite3.OperationalError("database or disk is full")

    before = snapshot(review.state)
    monkeypatch.setattr(review.ledger, "add", full)
    with pytest.raises(InputError, match="disk is full"):
        decide(review, "confirm", category=3)
    assert snapshot(review.state) == before
    assert review.version == "1.0"


def test_a_number_of_a_category_that_is_gone_is_not_given_to_a_split(tmp_path):
    run = small_run(tmp_path)
    before = Results.read(run)
    later = replace(before, last_number=before.last_number + 7)  # others came, and are gone
    with closing(Ledger(run.folder)) as ledger:
        rounds = ledger.round(before), ledger.round(later)
        state = ledger.replay(rounds[1]).state
    rows = np.flatnonzero(state.category == state.category[-1])
    state.apply(Decision("split", category=int(state.category[-1]), parts=((int(rows[0]),),)))
    assert state.names[-1] == f"novel-{later.last_number + 1}"
    assert rounds == (1, 2), "these are not the same results"


@pytest.mark.parametrize("kind", ["name", "merge"])
def test_a_number_that_a_person_gave_is_not_given_to_a_split(tmp_path, kind):
    state = State(Results.read(small_run(tmp_path)))
    taken, last = f"novel-{state.last + 1}", len(state.names) - 1
    about = {"categories": (last - 1, last)} if kind == "merge" else {"category": last}
    state.apply(Decision(kind, name=taken, **about))
    rows = np.flatnonzero(state.category == state.category[-1])
    state.apply(Decision("split", category=int(state.category[-1]), parts=((int(rows[0]),),)))
    assert state.names[-1] not in (taken, *state.names[:-1])


def test_the_number_of_a_part_that_was_named_is_not_given_again(tmp_path):
    state = State(Results.read(small_run(tmp_path)))
    rows = np.flatnonzero(state.category == state.category[-1])
    split = [Decision("split", category=int(state.category[-1]), parts=((int(row),),)) for row in rows[:3]]
    state.apply(split[0])
    first = state.last
    state.apply(Decision("name", category=len(state.names) - 1, name="terrier"))
    patch = state.apply(split[1])
    assert state.names[-1] == f"novel-{first + 1}"
    state.revert(patch)
    assert state.last == first
    state.apply(split[2])
    assert state.names[-1] == f"novel-{first + 1}", "what was taken back never was"


def test_a_file_that_is_not_ours_is_left_alone(folder):
    (folder / FILE).write_text("no database" * 100)
    with pytest.raises(InputError, match="not a database"):
        Review(folder)
    (folder / FILE).unlink()
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(InputError, match="is not a file of `selex review`"):
        Review(folder)
    (folder / FILE).unlink()
    Ledger(folder).close()
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(InputError, match="another version of selex"):
        Review(folder)


def test_a_locked_file_is_said_to_be_locked(folder, monkeypatch):
    monkeypatch.setattr("selex.review.core.ledger._WAIT", 0.05)
    Ledger(folder).close()
    db = sqlite3.connect(folder / FILE)
    db.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InputError, match="keeps it locked"):
        Review(folder)
    db.close()


def test_new_results_are_a_new_round_and_old_ones_their_old_round(tmp_path):
    run = small_run(tmp_path)
    review = Review(run.folder)
    first = review.results
    decide(review, "name", category=3, name="robin")
    old = review.version
    made_up_run(run.folder, tmp_path / "photos", review.results.files, np.arange(40) % 4, 2, ["a", "b", "c", "d"])
    with review.steady():
        assert (review.version, review.state.names) == ("2.0", ["a", "b", "c", "d"])
        assert review.changes.images > 0
    with pytest.raises(Conflict, match="in the meantime"):
        review.decide(Decision("confirm", category=3), old)
    assert labels_of(run).decisions == 1, "decisions of the round before still count"
    assert "robin" in labels_by_file(labels_of(run)).values()
    made_up_run(run.folder, tmp_path / "photos", first.files, first.category, first.n_known, first.names)
    with review.steady():
        assert (review.version, review.state.names[3]) == ("1.1", "robin"), "the very results of before are back"


def test_labels_are_what_is_confirmed(review):
    decide(review, "name", category=3, name="robin")
    decide(review, "confirm", category=4)
    moved = int(np.flatnonzero(review.results.category == 2)[0])
    decide(review, "move", rows=(moved,), name="wren")
    given = int(np.flatnonzero(review.results.labelled)[0])
    decide(review, "unsure", rows=(given,))
    decide(review, "set_aside", rows=(5,))
    labels, state = labels_of(review.run), review.state
    expected = {f"{row:03d}.png": state.names[state.category[row]] for row in np.flatnonzero(state.mark == CONFIRMED)}
    assert labels_by_file(labels) == expected
    assert labels_by_file(labels)[f"{moved:03d}.png"] == "wren"
    assert f"{given:03d}.png" not in labels_by_file(labels)
    assert aside_files(labels) == {"005.png"}
    assert labels.categories == 6
    assert labels.decisions == 5


def test_the_corrected_table(review):
    assert reviewed(review.run) is None
    decide(review, "merge", categories=(0, 3))
    decide(review, "set_aside", rows=(0,))
    (table,), count = reviewed(review.run)
    assert count == 2
    assert "000.png" not in table["file"]
    assert "novel-2" not in table["category"]
    row = table["file"].index(review.results.files[int(np.flatnonzero(review.results.category == 3)[0])])
    assert (table["category"][row], table["known"][row]) == ("known-0", 1)
    assert set(table["review"]) <= {"confirmed", "undecided", "unsure"}
    assert [table] == list(corrected(review.state))


def more_results(folder):
    """New results of the run in a folder, with four images more."""
    names = ["known-0", "known-1", "novel-1", "novel-2", "novel-3"]
    files = [f"{row:03d}.png" for row in range(44)]
    made_up_run(folder, folder.parent / "photos", files, np.arange(44) % 5, 2, names)


def test_results_that_come_while_others_are_read_are_not_missed(folder, monkeypatch):
    read = Results.read

    def slowly(run):
        found = read(run)
        monkeypatch.undo()
        more_results(folder)
        return found

    monkeypatch.setattr(Results, "read", slowly)
    review = Review(folder)
    with closing(review.ledger), review.steady():
        assert len(review.results) == len(review.embeddings) == len(review.paths) == len(review.state.category) == 44


def test_results_that_could_not_be_taken_in_are_taken_in_later(folder, monkeypatch):
    review = Review(folder)
    with closing(review.ledger):
        more_results(folder)
        with monkeypatch.context() as broken:
            broken.setattr(review.ledger, "changed", lambda: 1 // 0)
            with pytest.raises(ZeroDivisionError), review.steady():
                pass
        assert len(review.results) == len(review.state.category) == 40, "all as it was"
        with review.steady():
            assert len(review.results) == len(review.embeddings) == len(review.state.category) == 44


def test_a_corrected_table_is_of_the_results_that_were_decided_about(folder):
    review = Review(folder)
    with closing(review.ledger):
        decide(review, "set_aside", rows=(0,))
        blocks, _ = reviewed(review.run)
        more_results(folder)
        assert [file for block in blocks for file in block["file"]] == [f"{row:03d}.png" for row in range(1, 40)]


def test_a_runner_up_that_was_merged_is_what_it_was_merged_into_and_never_the_own_category(folder):
    review = Review(folder)
    with closing(review.ledger):
        decide(review, "merge", categories=(1, 3))
        decide(review, "merge", categories=(0, 1))
        decide(review, "name", category=2, name="two")
        named = ["known-0", "known-0", "two", "known-0", "novel-3"]  # where each category of the run is now
        cards = [image_card(review, Overview.of(review, np.arange(40)), row) for row in range(40)]
        (block,) = corrected(review.state)
    own, next_best = ([named[number] for number in of] for of in (review.results.category, review.results.runner_up))
    expected = ["" if other == mine else other for mine, other in zip(own, next_best, strict=True)]
    assert (block["category"], block["runner_up"]) == (own, expected)
    assert [card.runner_up or "" for card in cards] == expected
    assert "" in expected
    assert "known-0" in expected


def test_the_corrected_table_comes_in_blocks_and_is_of_the_moment(folder, tmp_path):
    path = folder / "clusters.parquet"
    parquet.write_table(parquet.read_table(path), path, row_group_size=8, write_page_checksum=True)
    reseal(folder)
    review = Review(folder)
    decide(review, "set_aside", rows=tuple(range(8, 16)))  # a whole row group
    decide(review, "name", category=3, name="a name")
    blocks, names = corrected(review.state), list(review.state.names)
    decide(review, "set_aside", rows=(0,))
    kept = [row for row in range(40) if not 8 <= row < 16]
    called = dict(zip(review.results.names, names, strict=True))
    assert called["novel-2"] == "a name"
    assert "novel-2" in set(review.run.clusters["runner_up"].to_pylist())
    expected = [
        {**line, "category": names[line["cluster"]], "runner_up": called[line["runner_up"]]}
        for line in review.run.clusters.take(kept).to_pylist()
    ]
    found = list(blocks)
    assert [len(block["file"]) for block in found] == [8] * 4
    lines = [dict(zip(block, line, strict=True)) for block in found for line in zip(*block.values(), strict=True)]
    assert [{**line, "known": 0, "review": ""} for line in lines] == [
        {**line, "known": 0, "review": ""} for line in expected
    ]
    for to in ("csv", "parquet"):
        done = export(review.run, to, tmp_path / f"table.{to}", table=corrected(review.state))
        assert done.images == 31
    assert parquet.read_table(tmp_path / "table.parquet")["file"].to_pylist() == [line["file"] for line in expected[1:]]
    review.ledger.close()


def test_changes_are_told_by_common_images(results):
    before = State(results)
    before.apply(Decision("name", category=3, name="robin"))
    # the same clusters under other numbers and names: robin is known now, novel-3 is called novel-1
    order = {0: 0, 1: 1, 3: 2, 4: 3, 2: 4}
    category = np.array([order[number] for number in results.category.tolist()])
    names = ["known-0", "known-1", "robin", "novel-1", "novel-2"]
    moved = int(np.flatnonzero(category == 3)[0])
    category[moved] = 0
    after = Results(results.files, names, 3, category, results.labelled, results.confidence, results.runner_up)
    changes = compare(before, after)
    assert np.flatnonzero(changes.rows).tolist() == [moved]
    assert changes.was(moved) == "novel-3"
    assert (changes.came, changes.went, changes.now_known) == ([], [], ["robin"])
    assert str(changes) == "1 image in another category; now known: robin"


def test_overview_counts_as_plain_loops_do(review):
    decide(review, "merge", categories=(2, 4))
    decide(review, "set_aside", rows=(0, 7))
    decide(review, "unsure", rows=(9,))
    state, sure = review.state, review.results.confidence
    overview = Overview.of(review, np.argsort(-sure, kind="stable"))
    for category in range(len(state.names)):
        rows = [row for row in range(40) if state.category[row] == category and state.mark[row] != SET_ASIDE]
        assert overview.rows(category).tolist() == sorted(rows, key=lambda row: -sure[row])
        assert overview.sizes[category] == len(rows)
        assert overview.confirmed[category] == sum(state.mark[row] == CONFIRMED for row in rows)
        doubted = [state.mark[row] == UNDECIDED and sure[row] < 0.5 for row in rows]
        assert overview.unsure[category] == sum(doubted) + sum(state.mark[row] == UNSURE for row in rows)
        assert overview.changed[category] == sum(state.category[row] != review.results.category[row] for row in rows)


def test_neighbours_stay_right_over_decisions(review):
    sure = np.argsort(-review.results.confidence, kind="stable")
    space = Space(review)
    space.neighbours(0, Overview.of(review, sure), review, 4)
    for step in (lambda: decide(review, "merge", categories=(0, 3)), lambda: decide(review, "set_aside", rows=(4, 8))):
        step()
        overview = Overview.of(review, sure)
        found = space.neighbours(0, overview, review, 4)
        fresh = Space(review).neighbours(0, overview, review, 4)
        assert [number for number, _ in found] == [number for number, _ in fresh]
        assert np.allclose([cosine for _, cosine in found], [cosine for _, cosine in fresh])
    review.step(UNDO, review.version)
    review.step(UNDO, review.version)
    overview = Overview.of(review, sure)
    assert np.allclose(space.means(overview, review), Space(review).means(overview, review))


def test_similar_images_by_plain_cosine(review):
    features = np.asarray(review.embeddings)
    cosine = [float(features[7] @ row / np.linalg.norm(features[7]) / np.linalg.norm(row)) for row in features]
    expected = sorted((row for row in range(40) if row != 7), key=lambda row: -cosine[row])[:5]
    assert [row for row, _ in Space(review).near(7, 5)] == expected


def test_parts_of_two_blobs():
    features = np.repeat([[0.0, 0], [5, 5], [9, 0]], [6, 4, 3], axis=0) + np.random.default_rng(0).normal(
        0, 0.1, (13, 2)
    )
    parts = parts_of(features, np.arange(10), 2)
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    with pytest.raises(Refused, match="too alike"):
        parts_of(np.zeros((5, 2)), np.arange(5), 2)
    with pytest.raises(Refused, match="2 images cannot"):
        parts_of(features, np.arange(2), 3)


def test_the_part_of_the_given_labels_keeps_the_name_and_all_of_them():
    """Thirty Birmans, eight of them labelled, and more Ragdolls: the larger part is not what is called Birman."""
    rng = np.random.default_rng(0)
    features = rng.normal(0, 0.3, (70, 2)) + np.repeat([[0.0, 0], [3, 0]], [30, 40], axis=0)
    features[0] = [2.5, 0]  # a labelled one that looks like the others
    rows, given = np.arange(70), np.arange(8)
    first, second = parts_of(features, rows, 2, given)
    assert set(first) == set(range(30))
    assert len(second) == 40
    assert len(parts_of(features, rows, 2)[0]) > len(second), "without labels the largest keeps the name"
    several = np.r_[0:4, 35:39]  # as many labels of either kind: of what a broader label is for
    assert {len(set(part) & set(several)) for part in parts_of(features, rows, 2, several)} <= {3, 4, 5}
    blobs = np.r_[features[:14], features[30:36]]
    assert [len(part) for part in parts_of(blobs, np.arange(20), 2, np.arange(20))] != [20], "all of them labelled"
