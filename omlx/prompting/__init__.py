"""Text in, text out: everything between a request's words and a model's, and nothing else. No I/O, no MLX.

Into the model: `prompt` (what a request becomes, from `jinja`, `gochat` or plain text; `abilities`, `conversation` and
`toolprose` bring messages into a template's shape; `infill` is fill-in-the-middle). Out of it: `output` (what a model's
text is made of; `splitter` and `harmony` follow the stream, `thinking` and `tools` know the families' markup).
`gotemplate` is Go's template language. `options` and `ollama` are the Ollama protocol's side.
"""
