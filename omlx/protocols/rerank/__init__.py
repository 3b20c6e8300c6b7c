"""The rerank API of Cohere's and Jina's clients."""
