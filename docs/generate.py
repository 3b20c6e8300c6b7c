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

Generated from `omlx/settings.py` by `make docs`.

A value comes from the first of: flag of `omlx serve`, `OMLX_…` variable, Ollama's variable, config file, default.
The config file is TOML, one `name = value` a line, at `~/.config/omlx/config.toml` (Linux) or
`~/Library/Application Support/omlx/config.toml` (macOS); `OMLX_CONFIG` names another. `omlx config` shows the effective
values and where each came from.

| setting | flag | variables | default | meaning |
|---|---|---|---|---|
"""


def configuration() -> str:
    """The text of docs/configuration.md."""
    return _INTRO + "".join(_row(setting) for setting in describe())


def _row(setting: Setting) -> str:
    variables = ", ".join(f"`{name}`" for name in (setting.variable, setting.kind.ollama) if name)
    flag = "–" if setting.name in NOT_FOR_THE_SERVER else f"`{setting.flag}`"
    return f"| `{setting.name}` | {flag} | {variables} | {_default(setting)} | {setting.description} |\n"


def _default(setting: Setting) -> str:
    value = setting.default
    match setting.kind.parse:
        case "keep_alive":
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
