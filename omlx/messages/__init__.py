"""Messages: the request as every protocol builds it, its events, and the frames between server and runner.

The bottom layer: it imports nothing of oMLX.
"""
