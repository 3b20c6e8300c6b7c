"""Measuring a model server from outside, over HTTP: what `omlx bench` and the comparisons of bench/ share.

A *target* is one model of one server (Ollama's or OpenAI's dialect); a *reply* is one streamed answer with the moment
of every piece of text; a *figure* is a named row of values; a *report* holds the figures of one run.
"""
