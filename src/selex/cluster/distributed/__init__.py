"""Clustering in several processes, each with rows of its own."""
