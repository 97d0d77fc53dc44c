"""What a job was asked to do: `Config`, its groups of settings, and presets."""

from selex.config.config import GROUPS, PAPER, PRESETS, Config, find_setting, flatten, settings_of
from selex.config.groups import ClusterConfig, DataConfig, FeatureConfig, TrainConfig

__all__ = ["GROUPS", "PAPER", "PRESETS", "ClusterConfig", "Config", "DataConfig", "FeatureConfig", "TrainConfig"]
__all__ += ["find_setting", "flatten", "settings_of"]
