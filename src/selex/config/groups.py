"""The settings, in groups: each with its default, what it is and which values it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from selex.config.settings import Group, setting
from selex.errors import InputError

FROZEN = "frozen"
"""The method that trains nothing."""
QUIRKS = ("order", "grouping", "crops", "targets", "clustering")
"""Where the published code leaves the paper: labels of levels out of order, levels that are groups of the base level,
features of augmented crops, its target matrix, its seeding and balancing."""


@dataclass(frozen=True)
class DataConfig(Group):
    """Which images and labels."""

    group: ClassVar[str] = "data"

    photos: str = setting("", "The images: a folder, a table or a single file.")
    added: str = setting("", "More images, one source per line.", "Added by `selex discover RUN --add FOLDER`.")
    labels: str | None = setting(
        None,
        "Label file, used instead of sub-folders.",
        "CSV or parquet with the columns `file_name` and `label`.",
        shown="FILE",
    )
    size: int | None = setting(
        None,
        "Shorter side of stored images, in pixels.",
        "`auto` chooses what suits the backbone.",
        least=1,
        none="auto",
    )

    @property
    def sources(self) -> list[str]:
        """Where images are: `photos`, then what was added; each place once."""
        return list(dict.fromkeys([self.photos, *filter(None, self.added.split("\n"))]))


@dataclass(frozen=True)
class FeatureConfig(Group):
    """How images become features."""

    group: ClassVar[str] = "features"

    backbone: str | None = setting(
        None,
        "Network that turns images into features.",
        "See `selex weights list`; also `timm:NAME`, `file:PATH`, `pixels`. `auto` means `efficientnet-lite1`, or "
        "`dinov2-vits14` on a GPU.",
        none="auto",
        shown="NAME",
    )
    weights: str | None = setting(None, "A file with the backbone's weights.", shown="FILE")
    crop: int | None = setting(
        None, "Input size of the backbone, in pixels.", "`auto` is the size it was trained with.", least=1, none="auto"
    )
    views: Literal[1, 2, 10] = setting(
        1,
        "Average features over this many views of an image.",
        "1: centre crop; 2: and its mirror image; 10: centre and corner crops, each with its mirror image.",
    )
    attention_crop: bool = setting(
        False,
        "Add a crop of what the backbone attends to.",
        "Features are averaged over the whole image and the crop, for objects that are small in their photos. "
        "Takes about three times as long.",
    )


@dataclass(frozen=True)
class ClusterConfig(Group):
    """How features become categories."""

    group: ClassVar[str] = "cluster"

    categories: int | None = setting(
        None, "Number of categories; `auto` estimates it.", "Known and novel together.", least=1, none="auto"
    )
    whiten: float = setting(
        0.5,
        "Strength of whitening, from 0 (off) to 1.",
        "Uses the scatter within labelled categories. The paper does not whiten.",
        least=0,
        most=1,
    )
    adapt: Literal["auto", "on", "off"] = setting(
        "auto",
        "Learn a linear map of the features from pairs that clusterings agree on.",
        "With three thousand images or more, `auto` uses it if held-out labels are recovered better; after training on "
        "all labels, `auto` is `off`. The paper does not adapt.",
    )
    search: Literal["auto", "bssk", "swaps", "smoothed", "unequal", "consensus"] = setting(
        "auto",
        "Search: `auto`, `bssk` (as in the paper), `swaps`, `smoothed`, `unequal` or `consensus`.",
        "`swaps` moves novel centres from where they hardly matter to clusters that hold two categories. `smoothed` "
        "averages images with their nearest neighbours first, for wide categories of unequal size; `unequal` does so, "
        "too, makes more clusters than asked for and merges those with the most neighbours in common, so that very "
        "large categories stay whole. `consensus` starts from what many quick runs agree on: slow, good where "
        "categories of equal size overlap. `auto` chooses `swaps`, `smoothed` or `unequal`, whichever recovers "
        "held-out labels best; after training on all labels it is `swaps`.",
    )
    refine: Literal["auto", "none", "proportional", "balanced"] = setting(
        "auto",
        "Soft refinement: `auto`, `none` (as in the paper), `proportional` or `balanced`.",
        "Images may belong to several clusters: more likely to large ones (`proportional`), or with all clusters "
        "pulled towards equal size (`balanced`). `auto` chooses what recovers held-out labels best; after training on "
        "all labels it is `none`.",
    )
    balanced: bool = setting(
        True, "Limit cluster sizes while centres settle.", "Turn it off if category sizes differ a lot."
    )
    levels: int | None = setting(None, "Maximum number of levels of abstraction.", least=1, none="all")
    restarts: int = setting(3, "Number of restarts; the clustering with the lowest inertia is kept.", least=1)
    iterations: int = setting(10, "Iterations of each stage of k-means.", least=1)
    probes: int | None = setting(
        None,
        "Number of groups of centres that an image is compared with; `all` compares with every centre.",
        "For ten thousand categories or more: while centres move, they are put into groups, as many as the square root "
        "of their number, and an image is compared only with those of its nearest groups. Faster, but less accurate "
        "where categories do not form groups; the last assignment is to the nearest of all centres.",
        least=1,
        none="all",
    )


@dataclass(frozen=True)
class TrainConfig(Group):
    """How the network is trained, if at all."""

    group: ClassVar[str] = "train"

    method: str = setting(
        FROZEN,
        "`frozen` (no training), `selex`, `gcd` or `simgcd`.",
        "How the backbone is trained. `selex`: with self-expertise. `gcd`, `simgcd`: as in the papers of that name. Or "
        "[your own method](../methods.md).",
        shown="NAME",
    )
    epochs: int = setting(20, "Number of training epochs.", least=1)
    batch: int = setting(128, "Batch size in images, each with two views.", least=1)
    shuffle_window: int | None = setting(
        None,
        "Shuffle window in images, for a store larger than memory; `all` shuffles all images.",
        "Pieces of 256 images are shuffled for every epoch, then joined into windows of this many images. Batches "
        "come from one window at a time, while the next one is read.",
        least=256,
        none="all",
    )
    lr: float = setting(0.01, "Initial learning rate.", "It decays to a thousandth of this along a cosine.", over=0)
    momentum: float = setting(0.9, "Momentum of stochastic gradient descent.", least=0, most=1)
    weight_decay: float = setting(1e-4, "Weight decay.", least=0, most=1)
    trained_blocks: int | None = setting(
        2, "Number of last blocks (or stages) of the backbone to train.", "0: the head alone.", least=0, none="all"
    )
    view_size: int | None = setting(
        None,
        "Side of the views that training sees, in pixels.",
        "`auto` is `features.crop`. Smaller views train faster and need less memory; features are still those of "
        "`features.crop`.",
        least=1,
        none="auto",
    )
    flip: bool = setting(True, "Mirror views at random.")
    affine: float = setting(
        0.0,
        "Random affine transforms: rotate, stretch and shear views by up to this much.",
        "0.15 is clearly visible.",
        least=0,
        most=1,
    )
    random_crop: float = setting(
        0.6, "Random resized crops: views lose up to this share of their width.", least=0, most=1
    )
    color_jitter: float = setting(
        0.4, "Colour jitter: vary brightness, contrast and saturation of views by up to this share.", least=0, most=1
    )
    hssk: bool = setting(True, "Use pseudo-labels of all levels of abstraction.", "Off: only of the base level.")
    use: bool = setting(True, "Unsupervised self-expertise.", "Off: plain InfoNCE.")
    sse: bool = setting(True, "Supervised self-expertise.", "Off: the supervised contrastive loss on labelled images.")
    loss_levels: int | None = setting(None, "Maximum number of levels used in the losses.", least=1, none="all")
    alpha: float = setting(
        1.0, "Target smoothing of unsupervised self-expertise.", "From 0, plain InfoNCE, to 1.", least=0, most=1
    )
    sup_weight: float = setting(0.35, "Weight of the supervised loss, the paper's lambda.", least=0, most=1)
    interval: int = setting(1, "Make pseudo-labels every N epochs.", least=1)
    targets: Literal["labels", "radii"] = setting(
        "labels", "Measure how far apart pairs are by pseudo-labels or by cluster radii."
    )
    form: Literal["softmax", "binary"] = setting("softmax", "Form of the cross-entropy against the targets.")
    kind: Literal["distance", "cosine"] | None = setting(
        None,
        "How embeddings are compared.",
        "`auto`: distance for `selex`, cosine for `gcd` and `simgcd`.",
        none="auto",
    )
    temperature: float = setting(
        1.0, "Temperature of the unsupervised loss.", "0.1 suits a network trained from scratch.", over=0
    )
    supervised_temperature: float = setting(0.07, "Temperature of the supervised losses.", over=0)
    head_dim: int | None = setting(
        None,
        "Output dimensions of the projection head.",
        "`auto` is the paper's 65,536, or 1,024 for a tiny backbone.",
        least=1,
        none="auto",
    )
    view_bank: int = setting(
        0,
        "Cache this many views of each image behind the frozen blocks.",
        "A step then runs only the trained blocks: several times faster, above all on a CPU. 0 makes new views each "
        "time; otherwise at least 2.",
        least=0,
    )
    refresh: float = setting(0.05, "Share of the view bank to refresh each epoch.", least=0, most=1)
    micro_batch: int | None = setting(
        None, "Images per micro-batch, to save memory.", "The gradient is the same.", least=1, none="all"
    )
    prototypes: float = setting(
        0.35,
        "Weight of a loss that pulls features towards their cluster's centre.",
        "0 is the paper's method.",
        least=0,
    )
    agreement: float = setting(
        0.0,
        "Weight of a loss that pulls together images that clusterings agree on.",
        "Features are adapted for it whenever pseudo-labels are made. 0 is the paper's method.",
        least=0,
    )
    expertise: float = setting(1.0, "Weight of the two self-expertise losses.", least=0)
    holdout: float = setting(
        0.2,
        "Share of the labels held out from training.",
        "Untrained features are kept if they recover these labels clearly better than trained ones; otherwise the "
        "network is trained again with all labels. Held-out labels also decide how trained features are clustered, and "
        "calibrate the confidence. The paper holds nothing out (0), and `simgcd` cannot.",
        least=0,
        most=0.5,
    )
    published: bool = setting(False, "Follow the published code where it differs from the paper.")
    published_quirks: str = setting(
        "",
        "Follow the published code in these points only.",
        f"Some of `{'`, `'.join(QUIRKS)}`, such as `order+crops`.",
    )

    @property
    def quirks(self) -> frozenset[str]:
        """In what the published code is followed."""
        return frozenset(QUIRKS if self.published else filter(None, self.published_quirks.split("+")))

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = sorted(self.quirks - set(QUIRKS))
        if wrong:
            raise InputError(f"train.published_quirks must be some of {', '.join(QUIRKS)}, not {wrong[0]!r}")
        if self.view_bank == 1:
            raise InputError("train.view_bank must be 0, or at least 2 for the two views of an image; not 1")
