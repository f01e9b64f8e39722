"""A namespace's memory as lines of JSON, and back."""
