"""The *runner*: one process that holds one model, and the server's handle on it (`host`)."""
