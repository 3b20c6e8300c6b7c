"""Ollama's model store: reading it, and importing its models."""
