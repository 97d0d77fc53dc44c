"""A run behind HTTP: new images in, their categories out."""
