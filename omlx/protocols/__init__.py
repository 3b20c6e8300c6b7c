"""Protocols: one folder for each HTTP API, with its wire structs and the way from a request to messages and back."""
