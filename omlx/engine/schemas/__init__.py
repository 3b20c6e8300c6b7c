"""JSON schemas, lowered to what the grammar compiler enforces."""
