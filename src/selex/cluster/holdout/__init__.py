"""What held-out labels decide: adaptation, search, refinement, confidence."""
