"""Cache adapters: one file per class of caches, and the table of them."""
