"""The engine: what runs inside a runner. One thread calls it and owns MLX.

Call `omlx.engine.blas.prepare()` before anything here that imports MLX.
"""
