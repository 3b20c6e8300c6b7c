"""The help texts of the interactive session."""

from __future__ import annotations

COMMANDS = """\
Available Commands:
  /set            Set session variables
  /show           Show model information
  /load <model>   Load a session or model
  /save <model>   Save your current session
  /clear          Clear session context
  /list           List models
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use \"\"\" to begin a multi-line message.
"""

MEDIA = "Use ./path/to/file to include .jpg, .png, .webp images, .wav audio or .mp4, .mov, .webm, .mkv, .gif videos.\n"

SET = """\
Available Commands:
  /set parameter ...     Set a parameter
  /set system <string>   Set system message
  /set history           Enable history
  /set nohistory         Disable history
  /set wordwrap          Enable wordwrap
  /set nowordwrap        Disable wordwrap
  /set format json       Enable JSON mode
  /set noformat          Disable formatting
  /set verbose           Show LLM stats
  /set quiet             Disable LLM stats
  /set think [level]     Enable thinking (true, high, medium, low, max)
  /set nothink           Disable thinking
"""


def parameters() -> str:
    """What `/set parameter` can set, from the table of options."""
    from omlx_registry.options import OPTIONS  # the registry takes a third of the start of a session

    lines = [
        f"  {f'/set parameter {option.name} <{option.type}>':<37} {option.help}\n"
        for option in OPTIONS.values()
        if option.help and option.type != "strings"
    ]
    stop = f"  /set parameter stop <string> <string> ...   {OPTIONS['stop'].help}\n"
    return "".join(["Available Parameters:\n", *lines, stop])


SHOW = """\
Available Commands:
  /show info         Show details for this model
  /show license      Show model license
  /show modelfile    Show Modelfile for this model
  /show parameters   Show parameters for this model
  /show system       Show system message
  /show template     Show prompt template
"""

SHORTCUTS = """\
Available keyboard shortcuts:
  Ctrl + a            Move to the beginning of the line (Home)
  Ctrl + e            Move to the end of the line (End)
   Alt + b            Move back (left) one word
   Alt + f            Move forward (right) one word
  Ctrl + k            Delete the sentence after the cursor
  Ctrl + u            Delete the sentence before the cursor
  Ctrl + w            Delete the word before the cursor
  Ctrl + j            Insert a new line
  Ctrl + r            Search the history

  Ctrl + g            Open the message in your editor
  Ctrl + l            Clear the screen
  Ctrl + c            Stop the model from responding
  Ctrl + d            Exit omlx (/bye)
"""

WORDS = (
    "/bye", "/clear", "/exit", "/help", "/list", "/load ", "/save ", "/? shortcuts",
    "/set format json", "/set history", "/set nohistory", "/set noformat", "/set nothink", "/set nowordwrap",
    "/set parameter ", "/set quiet", "/set system ", "/set think", "/set verbose", "/set wordwrap",
    "/show info", "/show license", "/show modelfile", "/show parameters", "/show system", "/show template",
)  # fmt: skip
"""What Tab completes to."""
