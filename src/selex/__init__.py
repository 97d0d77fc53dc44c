"""selex: sort images, a few of them labelled, into known categories and ones nobody has named yet."""
