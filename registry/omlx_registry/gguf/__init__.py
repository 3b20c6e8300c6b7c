"""GGUF files: reading them, and importing them as MLX models."""
