"""The page that decisions are made on, and what serves it."""
