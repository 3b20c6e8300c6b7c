"""The *self-test* of a model: does what we promise hold for this model on this machine? And what follows if not."""
