"""Training a backbone: the loop, what it runs on, and the methods."""
