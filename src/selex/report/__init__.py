"""Results as a person looks at them."""
