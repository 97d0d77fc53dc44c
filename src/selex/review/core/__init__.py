"""A person's decisions: what they are, what they do, where they are kept. No server, no page."""
