"""The books: what is true now."""
