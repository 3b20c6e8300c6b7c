"""Encoders: embedding and reranking."""
