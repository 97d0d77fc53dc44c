"""Backbone and images in, features out."""
