"""The words: frozen values that every other room speaks in."""
