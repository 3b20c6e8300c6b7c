"""oMLX's own API under /api/omlx: wire structs only."""
