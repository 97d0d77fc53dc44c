"""A person's decisions about a run: looked at and made on a web page, kept in the run folder, given back as labels."""
