"""Write the generated pages of docs/: docs/configuration.md from the settings struct.

`make docs` runs it; tests/settings/test_docs.py fails when a page is out of date.
"""

from __future__ import annotations

from pathlib import Path

from omlx.cli.serve import NOT_FOR_THE_SERVER
from omlx.settings import Setting, describe
from omlx.units import format_duration, human_bytes

FOLDER = Path(__file__).parent

_INTRO = """# Configuration

Generated from `omlx/settings/fields.py` by `make docs`.

A value comes from the first of: flag of `omlx serve`, `OMLX_…` variable, Ollama's variable, config file, default.
The config file is TOML, one `name = value` a line, at `~/.config/omlx/config.toml` (Linux) or
`~/Library/Application Support/omlx/config.toml` (macOS); `OMLX_CONFIG` names another, which must be
there. `omlx config` shows the effective values and where each came from.

| setting | flag | variables | default | meaning |
|---|---|---|---|---|
"""


def configuration() -> str:
    """The text of docs/configuration.md."""
    return _INTRO + "".join(_row(setting) for setting in describe()) + _OLLAMA_INTRO + _ollama_rows()


_OLLAMA_INTRO = """
## Ollama's variables

A value that cannot be read stops the start with a sentence, where Ollama warns and goes on with the default. Two
things are taken as Ollama takes them: a switch is on with any text but 0, f, false, no and off, and an unusable port in
`OLLAMA_HOST` is the default one, with a warning.

| variable | | what it does here |
|---|---|---|
"""
_NOT_SAME = {
    "OLLAMA_MODELS": ("differs", "another default folder; the models in it are MLX's"),
    "OLLAMA_NUM_PARALLEL": (
        "differs",
        "0 or unset: as many as memory allows, up to 256 (Ollama: 1); requests share one batch",
    ),
    "OLLAMA_MAX_LOADED_MODELS": ("differs", "0 or unset: three if memory allows (Ollama: three per GPU)"),
    "OLLAMA_DEBUG": ("differs", "2 (trace) is the same as 1"),
    "OLLAMA_EDITOR": ("same", "the editor behind Ctrl+G in a session"),
    "OLLAMA_NO_CLOUD": ("not applicable", "there is no cloud: always as if set"),
    "OLLAMA_KV_CACHE_TYPE": ("not applicable", "the KV cache keeps the type of the model"),
    "OLLAMA_FLASH_ATTENTION": ("not applicable", "MLX chooses its attention kernels"),
    "OLLAMA_GPU_OVERHEAD": ("not applicable", "see `max_process_memory`"),
    "OLLAMA_SCHED_SPREAD": ("not applicable", "a model is spread by `PARAMETER distributed`"),
    "OLLAMA_DEBUG_LOG_REQUESTS": ("not applicable", "request bodies are never logged"),
    "OLLAMA_REMOTES": ("not applicable", "no model runs elsewhere"),
    "OLLAMA_GO_TEMPLATE": ("not applicable", "a Modelfile's TEMPLATE is Go's, a model's own is Jinja's"),
    "OLLAMA_MAX_TRANSFER_STREAMS": ("not applicable", "downloads come from Hugging Face"),
    "OLLAMA_LLM_LIBRARY": ("not applicable", "the engine is MLX"),
    "OLLAMA_VULKAN": ("not applicable", "the engine is MLX"),
    "OLLAMA_IGPU_ENABLE": ("not applicable", "the engine is MLX"),
    "OLLAMA_AUTH": ("not applicable", "there is no account; see `api_key`"),
    "OLLAMA_API_KEY": ("not applicable", "read by Ollama's Python and JavaScript libraries only"),
    "HTTP_PROXY, HTTPS_PROXY, NO_PROXY": (
        "differs",
        "for pulls and servers elsewhere; never for a server on this machine",
    ),
    "CUDA_VISIBLE_DEVICES": ("same", "read by MLX's CUDA build"),
}


def _ollama_rows() -> str:
    """Every variable of Ollama: those that are settings, then the others."""
    mapped = {setting.kind.ollama: setting.name for setting in describe() if setting.kind.ollama}
    rows = ""
    for variable in [*mapped, *(name for name in _NOT_SAME if name not in mapped)]:
        status, note = _NOT_SAME.get(variable, ("same", ""))
        names = ", ".join(f"`{name}`" for name in variable.split(", "))
        setting = f"setting `{mapped[variable]}`" if variable in mapped else ""
        rows += f"| {names} | {status} | {'; '.join(part for part in (setting, note) if part)} |\n"
    return rows


def _row(setting: Setting) -> str:
    variables = ", ".join(f"`{name}`" for name in (setting.variable, setting.kind.ollama) if name)
    flag = "–" if setting.name in NOT_FOR_THE_SERVER else f"`{setting.flag}`"
    return f"| `{setting.name}` | {flag} | {variables} | {_default(setting)} | {setting.description} |\n"


def _default(setting: Setting) -> str:
    value = setting.default
    match setting.kind.parse:
        case "keep_alive" | "duration":
            return f"`{format_duration(value)}`"
        case "size":
            return f"`{human_bytes(value).replace(' ', '')}`"
        case "path" if value:
            return f"platform's folder, `…/{'/'.join(Path(value).parts[-2:])}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value not in ("", [], None) else "none"


if __name__ == "__main__":
    (FOLDER / "configuration.md").write_text(configuration(), "utf-8")
