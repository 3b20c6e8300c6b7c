"""The OpenAI API: chat completions, completions, responses, embeddings, models."""
