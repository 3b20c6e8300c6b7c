"""Which errors with a status of 500 and above are right: the request or the machine is to blame, and the text says so.

Ollama answers much of what others call a 400 with 500, and so do we.
"""

from __future__ import annotations

import re

KNOWN_500 = re.compile(
    r'option "\w+" must be of |invalid format: |pull model manifest: |template error|model runner has unexpectedly'
    r"|Go template|template|unsupported quantization type|quantization is only supported"
    r"|\w+:latest is no repository of yours|search: \S+ cannot be reached"
)
