"""Settings: one struct, from which CLI flags, environment variables, the config file and docs/configuration.md derive.

A *setting* is a field of `Settings`. Its value comes from the first of: command-line flag, `OMLX_<NAME>`, the Ollama
variable where Ollama has one, the TOML config file, the default. A value that does not parse stops the start with a
sentence that names the setting; it is never skipped. Only what Ollama takes in a variable of its own is taken there.
"""

from omlx.settings.address import bind_address, client_url, parse_host
from omlx.settings.fields import DEFAULT_PORT, Setting, SettingKind, Settings, describe
from omlx.settings.load import Loaded, SettingError, config_file, load

__all__ = [
    "DEFAULT_PORT",
    "Loaded",
    "Setting",
    "SettingError",
    "SettingKind",
    "Settings",
    "bind_address",
    "client_url",
    "config_file",
    "describe",
    "load",
    "parse_host",
]
