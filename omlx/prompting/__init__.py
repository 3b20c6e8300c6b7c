"""Text in, text out: everything between a request's words and a model's, and nothing else. No I/O, no MLX.

Into the model: `template` (what a request becomes, by `jinjachat`, `gochat` or as plain text; `template_capabilities`,
`conversation` and `tool_prompt` bring messages into a template's shape; `infill` is fill-in-the-middle). Out of it:
`output` (what a model's text is made of; `splitter` and `harmony` follow the stream, `thinking` and `tools` know the
families' markup). `gotemplate` is Go's template language.
"""
