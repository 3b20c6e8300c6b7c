"""Speculative decoding: draft models, and the controller that decides how many tokens they propose."""
