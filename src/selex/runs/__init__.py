"""A run folder: written, read, and what its results are used for."""
