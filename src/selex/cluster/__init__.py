"""Numbers in, cluster ids out: knows nothing of images, files or the network."""
