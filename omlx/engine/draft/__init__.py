"""Speculative decoding: drafters (a draft model, prompt lookup) and the controller that decides how many tokens they
guess."""
