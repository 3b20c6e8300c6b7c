"""oMLX: an Ollama-compatible server for MLX models."""

__version__ = "0.1.0"
