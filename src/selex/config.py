"""What a job was asked to do: decided once, then frozen, and kept with its results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from selex.errors import InputError
from selex.types import SIZES, Sizes

METHODS = ("frozen", "gcd", "simgcd", "selex")
SLIPS = ("order", "crops", "targets", "clustering", "decay")
"""Where the published code leaves the paper: labels of levels out of order, features of augmented crops, its target
matrix, its seeding and balancing, its weight decay."""
VIEWS = (1, 2, 10)
CHOICES = {"targets": ("labels", "radii"), "form": ("softmax", "binary"), "kind": ("distance", "cosine", None)}


@dataclass(frozen=True)
class Training:
    """How a network is trained. The defaults are the paper's.

    Attributes:
        epochs: passes over as many images as there are.
        batch: images of a step, each in two views.
        lr: learning rate of the first epoch; it falls to a thousandth as a cosine.
        momentum: of stochastic gradient descent.
        weight_decay: of all that is trained.
        trained_blocks: so many of the backbone's last blocks (or stages) are trained; None trains all of it.
        flip: views are mirrored at random.
        warp: views are turned, stretched and sheared at random by up to so much, 0.15 is visible; the paper does not.
        zoom: views are enlarged at random, up to this share of their width and height is lost; the paper's are not.
        jitter: brightness, contrast and saturation of views change at random by up to this share; the paper's do not.
        hssk: pseudo-labels of all levels of abstraction; off: of the base level alone.
        use: unsupervised self-expertise; off: plain InfoNCE.
        sse: supervised self-expertise; off: the supervised contrastive loss of the labelled rows alone.
        levels: at most so many levels take part in the losses; None takes all.
        alpha: how far the targets of unsupervised self-expertise go from plain InfoNCE (0) to all uncertain (1).
        balance: share of the supervised loss, the paper's lambda.
        interval: pseudo-labels are made anew every so many epochs.
        targets: pairs are far by their pseudo-`"labels"`, or by the `"radii"` of clusters.
        form: `"softmax"` or `"binary"` cross-entropy against the targets.
        kind: rows are compared by minus their `"distance"` or by `"cosine"`; None leaves it to the method: distance for
            `selex`, cosine for `gcd` and `simgcd`.
        temperature: of the unsupervised loss.
        supervised_temperature: of the supervised losses.
        head_dim: dims of the projection; None takes the paper's 65,536, or 1,024 for a tiny backbone.
        view_bank: so many views of each image are kept behind the frozen blocks, in place of a new one each time.
        renew: share of the view bank that is made anew each epoch.
        micro_batch: images at a time on the device, for small memory; None takes the batch at once. Same gradient.
        prototypes: weight of a loss that draws features to the centre of their base-level cluster; 0 is the paper's
            method.
        published: follow the published code where it leaves the paper.
        slips: the same for some of its differences alone, such as `"order+crops"`; see `SLIPS`.
    """

    epochs: int = 200
    batch: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    trained_blocks: int | None = 2
    flip: bool = True
    warp: float = 0.0
    zoom: float = 0.0
    jitter: float = 0.0
    hssk: bool = True
    use: bool = True
    sse: bool = True
    levels: int | None = None
    alpha: float = 0.5
    balance: float = 0.35
    interval: int = 1
    targets: Literal["labels", "radii"] = "labels"
    form: Literal["softmax", "binary"] = "softmax"
    kind: Literal["distance", "cosine"] | None = None
    temperature: float = 1.0
    supervised_temperature: float = 0.07
    head_dim: int | None = None
    view_bank: int = 0
    renew: float = 0.05
    micro_batch: int | None = None
    prototypes: float = 0.0
    published: bool = False
    slips: str = ""

    @property
    def differences(self) -> frozenset[str]:
        """In what the published code is followed."""
        return frozenset(SLIPS if self.published else filter(None, self.slips.split("+")))

    def __post_init__(self) -> None:
        wrong = sorted(self.differences - set(SLIPS))
        if wrong:
            raise InputError(f"slips must be some of {', '.join(SLIPS)}, not {wrong[0]!r}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be {' or '.join(filter(None, allowed))}, not {getattr(self, name)!r}")
        for name in ("epochs", "batch", "trained_blocks", "levels", "interval", "head_dim", "micro_batch"):
            _at_least(1, name, getattr(self, name))
        for name in ("lr", "temperature", "supervised_temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be over 0, not {getattr(self, name)}")
        if not 0 <= self.prototypes < float("inf"):
            raise InputError(f"prototypes must be at least 0, not {self.prototypes}")
        for name in ("alpha", "balance", "momentum", "renew", "warp", "zoom", "jitter", "weight_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        if self.view_bank < 0 or self.view_bank == 1:
            raise InputError(f"view_bank must be 0, or at least 2 for the two views of an image; not {self.view_bank}")


def _at_least(least: int, name: str, value: int | None) -> None:
    if value is not None and value < least:
        raise InputError(f"{name} must be at least {least}, not {value}")


PHOTOS = Training(epochs=20, lr=0.01, alpha=1.0, zoom=0.6, jitter=0.4, prototypes=0.35)
"""How `discover` trains if not told otherwise: what did best with two blocks and one look. `Training()`: the paper."""


def check_views(views: int) -> None:
    """Refuse a number of views of which there is no fixed set."""
    if views not in VIEWS:
        raise InputError(f"views must be {', '.join(map(str, VIEWS[:-1]))} or {VIEWS[-1]}, not {views}")


def check_sizes(sizes: str) -> None:
    """Refuse another word."""
    if sizes not in ("auto", *SIZES):
        raise InputError(f"sizes must be auto, {', '.join(SIZES[:-1])} or {SIZES[-1]}, not {sizes!r}")


@dataclass(frozen=True)
class Config:
    """The settings of `discover`.

    Attributes:
        photos: the folder, table or files given.
        labels: the label file given, if any.
        categories: how many categories, known and novel together; None estimates it.
        backbone: name of the network that turns images into features.
        weights: a file with its weights, where one was given.
        method: `"frozen"` clusters the features of the backbone as it is; the others train it first.
        training: how it is trained; `PHOTOS` if not given.
        levels: at most so many levels of abstraction in the result; None makes all.
        restarts: clustering runs, of which the tightest is kept.
        balanced: limit cluster sizes; off for long tails.
        sizes: how the last clustering ends, see `cluster.mixture.soften`: `"paper"`, `"any"`, `"unequal"` or `"equal"`;
            `"auto"` takes what sorts labels best that were hidden for it, and for trained features the paper's way.
        whiten: how far features are whitened by the scatter within known categories before they are clustered, from 0
            (as they are: the paper's way) to 1.
        views: a feature is the mean over so many views of an image: 1 is its middle, 2 its mirror image too, 10 the
            four corners as well.
        closer: look at every image a second time, closer, at what the backbone itself looks at; a feature is the mean
            of both.
        crop: side of the square that the backbone looks at, in pixels; None takes what it was made for.
        size: shorter side of stored images, in pixels; None takes what suits the backbone.
        seed: seed of everything random.
    """

    photos: str
    labels: str | None = None
    categories: int | None = None
    backbone: str = "efficientnet-lite1"
    weights: str | None = None
    crop: int | None = None
    method: str = "frozen"
    training: Training = PHOTOS
    levels: int | None = None
    restarts: int = 3
    balanced: bool = True
    sizes: Sizes | Literal["auto"] = "auto"
    whiten: float = 0.5
    views: int = 1
    closer: bool = False
    size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method {self.method!r} is not one of {', '.join(METHODS)}")
        for name in ("categories", "crop", "levels", "restarts", "size"):
            _at_least(1, name, getattr(self, name))
        _at_least(0, "seed", self.seed)
        if not 0 <= self.whiten <= 1:
            raise InputError(f"whiten must be from 0 to 1, not {self.whiten}")
        check_views(self.views)
        check_sizes(self.sizes)
        if self.method == "simgcd" and self.sizes not in ("auto", "paper"):
            raise InputError(f"sizes {self.sizes}: simgcd sorts by its classifier, not by clusters; leave --sizes out")

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Config:
        """A config from such values; ones it does not know are of another version."""
        training = Training(**_known(Training, values["training"])) if "training" in values else PHOTOS
        return cls(**{"sizes": "paper", **_known(cls, values), "training": training})  # older runs had no other


def _known(kind: type[Config] | type[Training], values: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(values) - {field.name for field in fields(kind)})
    if unknown:
        raise InputError(f"settings of another version of selex: {', '.join(unknown)}")
    return values
