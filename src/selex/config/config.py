"""What a job was asked to do: settings in groups, decided once, then frozen, and kept with its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from selex.config.groups import ClusterConfig, DataConfig, FeatureConfig, TrainConfig
from selex.config.settings import Group, as_toml, setting
from selex.errors import InputError, unknown


@dataclass(frozen=True)
class Config:
    """All settings of a job, in groups. `Config.of("photos", categories=12, backbone="pixels")` makes one by names.

    Attributes:
        data: which images and labels.
        features: how images become features.
        cluster: how features become categories.
        train: how the network is trained, if at all.
        seed: the random seed.
    """

    data: DataConfig = DataConfig()
    features: FeatureConfig = FeatureConfig()
    cluster: ClusterConfig = ClusterConfig()
    train: TrainConfig = TrainConfig()
    seed: int = setting(0, "Random seed.", "The same seed gives the same result on the same device.", least=0)

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or self.seed < 0:
            raise InputError(f"seed must be a whole number of at least 0, not {self.seed!r}")
        if self.seed >= 2**63:
            raise InputError(f"seed is too large: {self.seed}")

    @classmethod
    def of(cls, photos: str = "", *, preset: str = "photos", **settings: Any) -> Config:
        """The settings of a preset for some photos, with the `settings` that are given, as `change` takes them."""
        if preset not in PRESETS:
            raise unknown("preset", preset, PRESETS)
        return cls().change(**PRESETS[preset]).change(photos=photos, **settings)

    def change(self, **settings: Any) -> Config:
        """The same but for these settings, by name: `config.change(whiten=0)`, or `**{"cluster.whiten": 0}`."""
        groups: dict[str, Any] = {}
        for key, value in settings.items():
            group, about = find_setting(key)
            groups.setdefault(group, {})[about.name] = value
        own = groups.pop("", {})
        return replace(self, **{name: replace(getattr(self, name), **values) for name, values in groups.items()}, **own)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file, group by group."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Config:
        """A config from such values."""
        try:
            return cls().change(**flatten(values))
        except (InputError, TypeError) as error:
            raise InputError(f"settings of another version of selex: {error}") from None

    def to_toml(self) -> str:
        """The same as a TOML file that `--config` reads, each setting below what it is."""
        parts = []
        for group in ("", *GROUPS):
            values = getattr(self, group) if group else self
            lines = [as_toml(about, getattr(values, about.name)) for _, about in settings_of(group)]
            parts.append("\n".join([f"[{group}]", *lines] if group else lines))
        return "\n\n".join(parts) + "\n"


GROUPS: dict[str, type[Group]] = {
    group.group: group for group in (DataConfig, FeatureConfig, ClusterConfig, TrainConfig)
}
"""Every group of settings by name."""


def find_setting(key: str) -> tuple[str, Field[Any]]:
    """The group and the field of a setting, by its name with or without that of its group."""
    paths = {path: (group, about) for group in ("", *GROUPS) for path, about in settings_of(group)}
    names = {about.name: path for path, (_, about) in paths.items()}
    path = names.get(key, key)
    if path in paths:
        return paths[path]
    last = key.rpartition(".")[2]
    near = names.get(last) or get_close_matches(last, names, n=1, cutoff=0)[0]
    raise InputError(f"no setting {key!r}; did you mean {names.get(near, near)!r}? `selex config` lists all")


def settings_of(group: str) -> Iterator[tuple[str, Field[Any]]]:
    """Settings of a group with their full names; those of no group have the name alone."""
    for about in fields(GROUPS[group] if group else Config):  # type: ignore[arg-type]
        if about.metadata:
            yield f"{group}.{about.name}" if group else about.name, about


def flatten(values: dict[str, Any]) -> dict[str, Any]:
    """`{"cluster": {"whiten": 0}}` as `{"cluster.whiten": 0}`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
    return flat


_PAPER = {"holdout": 0.0, "alpha": 0.5, "random_crop": 0.0, "color_jitter": 0.0, "prototypes": 0.0}
PRESETS: dict[str, dict[str, Any]] = {
    "photos": {},
    "paper": {
        "method": "selex",
        "epochs": 200,
        "lr": 0.1,
        "whiten": 0.0,
        "adapt": "off",
        "search": "bssk",
        "refine": "none",
        "restarts": 10,
        **_PAPER,
    },
    "best": {
        "method": "selex",
        "lr": 0.003,
        "trained_blocks": 4,
        "agreement": 1.0,
        "expertise": 0.0,
        "prototypes": 0.0,
        "interval": 5,
        "views": 10,
        "attention_crop": True,
        "holdout": 0.1,
        "adapt": "on",
        "search": "bssk",
        "restarts": 10,
    },
    "fast": {"epochs": 10, "view_bank": 4, "adapt": "off", "search": "swaps", "refine": "none", "restarts": 1},
}
"""What each preset changes. `photos` is the default, `paper` follows the paper's text, `best` is what held-out labels
of CUB chose, slowly, `fast` is for a first look."""
PAPER = Config.of(preset="paper")
