"""Backbones by name and where their weights come from."""

from selex.models.backbones import default_backbone, load_backbone
from selex.models.network import Backbone
from selex.models.registry import BACKBONES
from selex.models.weights import fetch_weights, list_weights, verify_weights

__all__ = [
    "BACKBONES",
    "Backbone",
    "default_backbone",
    "fetch_weights",
    "list_weights",
    "load_backbone",
    "verify_weights",
]
