"""Images and labels in, batches out: tables of images, and the store in which each is decoded once."""
