"""The figures hold the numbers that they should."""

import numpy as np
import pytest
from PIL import Image

from commands import refused, selex
from results_for_tests import result, three_seeds
from selex.bench.paper import SUITES
from selex.bench.plots import figures, plot_epochs, plot_radar, plot_sweep


def lines(axes):
    """The drawn lines by label: x and y."""
    handles, labels = axes.get_legend_handles_labels()
    drawn = [getattr(handle, "lines", [handle])[0] for handle in handles]
    return {label: np.array(line.get_data(), dtype=float) for label, line in zip(labels, drawn, strict=True)}


def test_a_sweep_shows_means_and_the_papers_numbers():
    rows = [run for value in (7, 2) for run in three_seeds(suite="levels", row=f"levels={value}")]
    figure = plot_sweep(SUITES["levels"], rows)
    [axes] = figure.axes
    drawn = lines(axes)
    assert drawn["Novel"] == pytest.approx(np.array([[2, 7], [61, 61]]))
    theirs = drawn["Novel, paper (dino-vitb16)"]
    assert theirs[0].tolist() == list(range(8))
    assert theirs[1].tolist() == pytest.approx([58.2, 58.3, 65.3, 67.9, 69.4, 67.2, 71.1, 72.8])
    assert axes.get_xlabel() == "levels of the hierarchy"


def test_what_the_paper_prints_of_a_curve_is_one_point():
    [axes] = plot_sweep(SUITES["label-ratio"], three_seeds(suite="label-ratio", row="label_ratio=0.5")).axes
    drawn = lines(axes)
    assert drawn["Novel, paper (dino-vitb16)"] == pytest.approx(np.array([[0.2, 0.5], [68.0, 72.8]]))
    assert drawn["Known, paper (dino-vitb16)"] == pytest.approx(np.array([[0.5], [75.3]]))


def test_a_panel_for_each_dataset_and_setting():
    runs = [result(suite="alpha", row="alpha=1", dataset=name) for name in ("cub", "pets", "cifar10", "cars")]
    figure = plot_sweep(SUITES["alpha"], runs)
    assert [axes.get_title().splitlines()[0] for axes in figure.axes] == [
        "CUB-200-2011",
        "Oxford-IIIT Pet",
        "CIFAR-10",
        "Stanford Cars",
    ]
    papers = [[label for label in lines(axes) if "paper" in label] for axes in figure.axes]
    assert [bool(labels) for labels in papers] == [True, True, False, True], (
        "the paper has no curve of alpha on CIFAR-10"
    )


def test_the_radar_has_ours_and_the_papers():
    figure = plot_radar([*three_seeds(), result((0.9, 0.92, 0.88), dataset="pets")])
    novel, known = figure.axes
    assert (novel.get_title(), known.get_title()) == ("Novel", "Known")
    names = [label.get_text() for label in novel.get_xticklabels()]
    assert names[0] == "CUB-200-2011"
    assert len(names) == 8
    mine = lines(novel)["SelEx, dinov2-vits14-reg, 20 epochs"][1]
    assert mine[[0, 3, 8]].tolist() == pytest.approx([61, 88, 61]), "closed"
    assert np.isnan(mine[[1, 2, 4, 5, 6, 7]]).all()
    theirs = lines(known)["SelEx, paper (dino-vitb16)"][1]
    assert theirs[:4].tolist() == pytest.approx([75.3, 64.7, 75.6, 91.9])


def test_epochs_are_averaged_over_seeds():
    curves = [
        [{"epoch": e, "all": 0.5 + 0.1 * e + shift, "known": 0.7, "novel": 0.4} for e in range(3)]
        for shift in (0, 0.02)
    ]
    [axes] = plot_epochs([result(seed=seed, curve=curve) for seed, curve in enumerate(curves)]).axes
    assert lines(axes)["All"] == pytest.approx(np.array([[0, 1, 2], [51, 61, 71]]))
    [band, *_] = axes.collections
    low, high = band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()
    assert (low, high) == pytest.approx((51 - 2**0.5, 71 + 2**0.5))


def test_only_what_there_are_results_for_is_drawn():
    assert list(figures([result()])) == ["radar"]
    assert list(figures([result(suite="components", row="none")])) == []
    curve = [{"epoch": e, "all": 0.5, "known": 0.5, "novel": 0.5} for e in range(2)]
    runs = [
        result(curve=curve),
        result(suite="lambda", row="lambda=0.2"),
        result(suite="frozen-blocks", row="frozen=8"),
    ]
    assert list(figures(runs)) == ["radar", "epochs", "lambda", "frozen-blocks"]


def test_the_command_writes_pictures(tmp_path):
    for run in [*three_seeds(), *three_seeds(suite="alpha", row="alpha=0.5")]:
        run.save(tmp_path / "results")
    for _ in range(2):  # its own pictures it draws again
        done = selex("bench", "plot", "results", "--out", "figures", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "wrote figures/radar.png\nwrote figures/alpha.png\n"
    for name in ("radar", "alpha"):
        with Image.open(tmp_path / "figures" / f"{name}.png") as picture:
            assert min(picture.size) > 500
            assert len(picture.convert("RGB").getcolors(maxcolors=2**24)) > 10
    done = selex("bench", "plot", "results", "--out", "figures", "--to", "svg", cwd=tmp_path)
    assert (tmp_path / "figures" / "radar.svg").is_file()
    (tmp_path / "figures" / "radar.pdf").write_text("mine")
    refused(
        "radar.pdf: exists and is not what", "bench", "plot", "results", "--out", "figures", "--to", "pdf", cwd=tmp_path
    )


def test_mistakes_are_one_line(tmp_path):
    result(suite="components", row="none").save(tmp_path / "results")
    refused("has no results that can be plotted", "bench", "plot", "results", "--out", "figures", cwd=tmp_path)
    result().save(tmp_path / "results")
    refused("does not exist; make it first", "bench", "plot", "results", "--out", "a/b", cwd=tmp_path)
