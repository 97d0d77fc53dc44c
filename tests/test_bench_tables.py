"""Tables of stored results, their numbers worked by hand, and the commands around them."""

import math
from dataclasses import replace

import pytest

from commands import refused, selex
from results_for_tests import result, three_seeds
from selex.bench.groups import Seeds
from selex.bench.tables import Column, Show, Table, make_tables, percent, to_latex, to_markdown
from selex.errors import InputError
from selex.types import Scores


def cells(table, start):
    """The row whose first cells are `start`."""
    [row] = [row for row in table.rows if row[: len(start)] == list(start)]
    return row[len(start) :]


def test_mean_and_deviation_by_hand():
    seeds = Seeds(tuple(three_seeds()))
    assert seeds.mean() == pytest.approx((0.71, 0.80, 0.61))
    assert seeds.sd() == pytest.approx((0.01, 0, math.sqrt(3) / 100))
    assert seeds.mean(version="v1") == pytest.approx((0.72, 0.81, 0.62))
    assert all(map(math.isnan, seeds.mean("inductive")))


def test_percent_rounds_to_one_decimal():
    assert percent(0.7104, 0.0123) == "71.0 ± 1.2"
    assert percent(0.5) == "50.0"
    assert percent(math.nan) == "-"


def test_the_main_table_has_the_papers_rows_below_ours():
    [table] = make_tables(three_seeds())
    assert [column.name for column in table.columns[:4]] == ["method", "backbone", "epochs", "seeds"]
    assert table.columns[4:] == [Column(word, "CUB-200-2011") for word in ("All", "Known", "Novel")]
    assert cells(table, ["SelEx", "dinov2-vits14-reg", "20", "3"]) == ["71.0 ± 1.0", "80.0 ± 0.0", "61.0 ± 1.7"]
    assert cells(table, ["SelEx, in the paper", "dino-vitb16"]) == ["-", "-", "73.6", "75.3", "72.8"]
    assert cells(table, ["SelEx, in the paper", "dinov2-vitb14"]) == ["-", "-", "87.4", "85.1", "88.5"]
    assert len(table.rows) == 3
    assert table.notes[-1] == "selex 0.1.0 on NVIDIA H200."


def test_of_a_dataset_that_is_not_in_the_paper_the_table_says_nothing_of_it():
    [table] = make_tables([result(dataset="mine")])
    assert len(table.rows) == 1
    assert not any("paper" in note for note in table.notes)


def test_a_table_names_commits():
    commits = {
        0: {"commit": "4db8a1e356c0c323", "clean": True},
        1: {"commit": "d2649b9356c0c323", "clean": False},
        2: {},
    }
    [table] = make_tables([result(seed=seed, **commit) for seed, commit in commits.items()])
    first, second = "0.1.0 (commit 4db8a1e356c0)", "0.1.0 (commit d2649b9356c0, with changes)"
    assert table.notes[-1] == f"selex 0.1.0, {first}, {second} on NVIDIA H200."


def test_one_seed_has_no_deviation():
    [table] = make_tables([result()])
    assert cells(table, ["SelEx", "dinov2-vits14-reg", "20", "1"]) == ["70.0", "80.0", "65.0"]


def test_settings_are_rows_and_datasets_columns():
    runs = [*three_seeds(), result(dataset="pets"), result(variant="published"), result(method="frozen", epochs=0)]
    runs += [result(estimated={"n_clusters": 231, "low": 1, "high": 2}, n_categories=231)]
    [table] = make_tables(runs)
    assert len(table.columns) == 4 + 6
    ours = {row[0]: row[1:] for row in table.rows if "paper" not in row[0]}
    assert list(ours) == ["Frozen features", "SelEx", "SelEx (estimated K)", "SelEx (published)"]
    assert ours["SelEx"][2:] == ["1–3", "71.0 ± 1.0", "80.0 ± 0.0", "61.0 ± 1.7", "70.0", "80.0", "65.0"]
    assert ours["SelEx (published)"][-3:] == ["-", "-", "-"]


def test_all_methods_of_the_paper_can_join():
    few, [many] = make_tables([result()])[0], make_tables([result()], show=Show(all_methods=True))
    assert len(few.rows) == 3
    assert cells(many, ["µGCD, in the paper", "dinov2-vitb14"])[2:] == ["74.0", "75.9", "73.1"]
    assert not [row for row in many.rows if row[0].startswith("TIDA")], "it has no number for this dataset"


def test_v1_and_test_images():
    run = result(inductive={"v2": Scores(0.5, 0.6, 0.4)})
    [table] = make_tables([run], show=Show(version="v1"))
    assert cells(table, ["SelEx", "dinov2-vits14-reg"])[2:] == ["71.0", "81.0", "66.0"]
    [table] = make_tables([run], show=Show("inductive"))
    assert cells(table, ["SelEx", "dinov2-vits14-reg"])[2:] == ["50.0", "60.0", "40.0"]
    assert "test images" in table.notes[0]
    with pytest.raises(InputError, match="no result of suite 'main' holds accuracies on test images"):
        make_tables([result()], show=Show("inductive"))


def test_an_ablation_has_its_rows_in_order_and_the_papers_beside_them():
    runs = [run for row in ("HSSK+USE+SSE", "none", "mine") for run in three_seeds(suite="components", row=row)]
    [table] = make_tables(runs, "components")
    assert "Effect of each component: CUB-200-2011, SelEx, dinov2-vits14-reg, 20 epochs" in table.title
    ours = ["3", "71.0 ± 1.0", "80.0 ± 0.0", "61.0 ± 1.7"]
    assert table.rows == [
        ["none", *ours, "46.1", "49.2", "44.5"],
        ["HSSK+USE+SSE", *ours, "73.6", "75.3", "72.8"],
        ["mine", *ours, "-", "-", "-"],
    ]
    assert "tab:compseff (a)" in table.notes[1]


def test_an_ablation_on_another_dataset_has_no_paper():
    [table] = make_tables([result(suite="levels", row="levels=2", dataset="pets")], "levels")
    assert [column.group for column in table.columns] == ["", "", "ours", "ours", "ours"]


def test_estimated_counts_stand_beside_the_papers():
    runs = [result(suite="estimated-k", row="K=true")]
    for seed, count in enumerate((220, 240)):
        found = {"n_clusters": count, "low": count - 20, "high": count + 20}
        runs.append(result(suite="estimated-k", row="K=auto", seed=seed, n_categories=count, estimated=found))
    [table] = make_tables(runs, "estimated-k")
    assert table.rows[0] == ["K=true", "1", "200", "70.0", "80.0", "65.0", "200", "73.6", "75.3", "72.8"]
    assert table.rows[1][:3] == ["K=auto", "2", "220–240 (200–260)"]
    assert table.rows[1][6:] == ["231", "72.0", "72.3", "71.9"]


def test_the_time_table():
    runs = [result(suite="time", row="selex", seed=seed, seconds={"epoch": 14.0 + seed}) for seed in range(2)]
    runs += [result(suite="time", row="gcd", method="gcd", flops=None)]
    [table] = make_tables(runs, "time")
    where = ["dinov2-vits14-reg", "NVIDIA H200"]
    assert table.rows == [
        ["SelEx", *where, "2", "14.50 ± 0.71", "12.00", "20.00", "11.50", "84.29", "40.43", "37.25"],
        ["GCD", *where, "1", "14.00", "-", "20.00", "11.50", "61.57", "19.98", "37.25"],
    ]


def test_the_time_table_tells_rows_of_one_method_apart_and_takes_what_is_missing():
    runs = [result(suite="time", row="selex", seconds={"total": 1.0}), result(suite="time", row="compiled")]
    [table] = make_tables(runs, "time")
    assert [(row[0], row[4]) for row in table.rows] == [("SelEx", "-"), ("SelEx, compiled", "14.00")]


def test_a_seed_twice_is_refused():
    runs = [replace(run, file=f"folder/{name}.json") for run, name in ((result(), "a"), (result(), "b"))]
    with pytest.raises(InputError, match=r"seed 0 of the same run appears twice: a.json and b.json"):
        make_tables(runs)


def test_seeds_with_other_settings_are_refused():
    other = result(seed=1, config={"root": "elsewhere", "train": {"alpha": 0.5, "lr": 0.03}})
    with pytest.raises(InputError, match=r"differ in train.lr \(0.1, 0.03\): give one of them another --variant"):
        make_tables([result(), other])
    make_tables([result(), result(seed=1, config={"root": "elsewhere", "train": {"alpha": 0.5, "lr": 0.1}})])


def test_a_setting_that_an_older_result_does_not_have_is_the_usual_one():
    train = {**result().config["train"], "prototypes": 0.0, "published_quirks": ""}
    now = {"cluster": {"refine": "none", "whiten": 0.0}, "features": {"views": 1}, "train": train}
    make_tables([result(), result(seed=1, config=now)])
    for path, other in {"cluster.whiten": 0.5, "features.attention_crop": True, "features.crop": 168}.items():
        group, name = path.split(".")
        changed = {**now, group: {**now[group], name: other}}  # type: ignore[dict-item]
        with pytest.raises(InputError, match=rf"differ in {path} \(.*, {other}\)"):
            make_tables([result(), result(seed=1, config=changed)])


def test_a_row_that_changes_nothing_is_the_run_of_the_main_suite():
    other = result(suite="alpha", row="alpha=0.1", config={"train": {"alpha": 0.1, "lr": 0.1}})
    main = [replace(run, file="main") for run in three_seeds()]
    [table] = make_tables([other, *main, result(dataset="pets"), result(variant="other")], "alpha")
    assert [row[:2] for row in table.rows] == [["alpha=0.1", "1"], ["alpha=0.5", "3"]]
    assert cells(table, ["alpha=0.5", "3"])[:3] == ["71.0 ± 1.0", "80.0 ± 0.0", "61.0 ± 1.7"]
    own = result(suite="alpha", row="alpha=0.5")
    [table] = make_tables([other, own, *main], "alpha")
    assert [row[:2] for row in table.rows] == [["alpha=0.1", "1"], ["alpha=0.5", "1"]]  # its own is taken


def test_a_suite_without_results_says_what_there_is():
    with pytest.raises(InputError, match="no results of suite 'alpha'; there are results of: main"):
        make_tables([result()], "alpha")


SMALL = Table("A & B", [Column("row"), Column("x_1", "50%"), Column("y", "50%")], [["µ|{}", "1 ± 2", "~^\\$#"]], ["n"])


def test_markdown_of_a_small_table():
    body = "| row | 50% x_1 | 50% y |\n| --- | --- | --- |\n| µ\\|{} | 1 ± 2 | ~^\\$# |"
    assert to_markdown(SMALL) == f"**A & B**\n\n{body}\n\nn"


def test_latex_of_a_small_table_with_everything_escaped():
    assert to_latex(SMALL).splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{A \& B. n}",
        r"\begin{tabular}{lcc}",
        r"\toprule",
        r" & \multicolumn{2}{c}{50\%} \\",
        r"\cmidrule(lr){2-3}",
        r"row & x\_1 & y \\",
        r"\midrule",
        r"$\mu$|\{\} & 1 $\pm$ 2 & \textasciitilde{}\textasciicircum{}\textbackslash{}\$\# \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_every_line_of_a_wide_latex_table_has_as_many_cells():
    runs = [result(dataset=name) for name in ("cub", "cars", "pets")]
    [table] = make_tables(runs, show=Show(all_methods=True))
    body = to_latex(table).split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert {line.count(" & ") for line in body} == {4 + 9 - 1}
    assert r"\resizebox{\linewidth}{!}{%" in to_latex(table)


def test_the_command_prints_and_writes(tmp_path):
    for run in three_seeds():
        run.save(tmp_path / "results")
    done = selex("bench", "table", "results", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "| SelEx | dinov2-vits14-reg | 20 | 3 | 71.0 ± 1.0 | 80.0 ± 0.0 | 61.0 ± 1.7 |" in done.stdout
    for _ in range(2):  # its own file it writes again
        done = selex("bench", "table", "results", "--to", "latex", "--out", "t.tex", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "wrote t.tex\n")
    assert "71.0 $\\pm$ 1.0" in (tmp_path / "t.tex").read_text()
    (tmp_path / "mine.tex").write_text("my own words")
    refused("is not what this command writes", "bench", "table", "results", "--out", "mine.tex", cwd=tmp_path)


def test_mistakes_of_the_command_are_one_line(tmp_path):
    folder = tmp_path / "results"
    result().save(folder)
    refused("did you mean 'alpha'?", "bench", "table", "results", "--suite", "alhpa", cwd=tmp_path)
    refused("away: no such folder", "bench", "table", "away", cwd=tmp_path)
    refused("no results of suite 'time'", "bench", "table", "results", "--suite", "time", cwd=tmp_path)
    result(seed=1, versions={"selex": "0.2.0"}).save(folder)
    refused("results of several versions of selex: 0.1.0", "bench", "table", "results", cwd=tmp_path)
    refused("results of several versions of selex", "bench", "plot", "results", "--out", "figures", cwd=tmp_path)
    done = selex("bench", "table", "results", "--mixed-versions", cwd=tmp_path)
    assert "selex 0.1.0, 0.2.0 on NVIDIA H200." in done.stdout
    (folder / "z.json").write_text("{")
    refused("z.json: is damaged", "bench", "table", "results", cwd=tmp_path)
