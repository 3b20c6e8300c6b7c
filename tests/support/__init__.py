"""Helpers that test modules share: tiny models, and what they know."""
