"""Ways to find better minima of k-means, by name."""
