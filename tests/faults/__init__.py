"""The *fault campaign*: break something under a real server, look at what users see, then examine everything.

    make faults                                  the whole campaign (`-m slow` too); prints a line per fault
    python -m pytest tests/faults -m "not slow"  the short form of every day

Each test's docstring is the expected outcome. After each the fixture `house` asks for the server's whole integrity.
"""
