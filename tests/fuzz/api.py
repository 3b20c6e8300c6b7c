"""The OpenAPI document against a real server, by schemathesis: bodies that fit it, bodies that nearly do, odd methods.

    make fuzz-api                   FUZZ_SECONDS (60); CI runs it; an hour: FUZZ_SECONDS=3600

Every answer has a status and a content type of the document and fits its schema, an error is one that is defined (see
`api_hooks`); afterwards the server is examined as after a fault. Exit status 1 where any of it is not so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from docs import openapi
from tests.faults.house import MODEL, House

TOOL = Path(os.environ.get("SCHEMATHESIS", ".venv-tools/bin/schemathesis"))
CHECKS = (
    "an_error_is_defined",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
"""Not among them: refusing whatever the schema does not allow. Go's JSON is lenient, so is ours."""

ENDLESS = "/api/omlx/events"
"""A stream that ends with its reader: tests/server/test_dashboard.py."""

NOWHERE = "http://127.0.0.1:9"


def attack(url: str, seconds: int, document: Path) -> int:
    """Run schemathesis on the server at `url`; its exit status."""
    command: list[str] = [
        *(str(TOOL.absolute()), "run", str(document), "--url", url, "--max-time", str(seconds)),
        *("--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--exclude-path", ENDLESS),
        *("--request-timeout", "60", "--suppress-health-check", "all", "--generation-database", "none"),
        *("--continue-on-failure", "--no-color", "--warnings", "off"),
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzz.api_hooks", "NO_PROXY": "*"}
    return subprocess.run(command, env=environment, check=False).returncode


def main(seconds: int) -> int:
    with tempfile.TemporaryDirectory(prefix="omlx-fuzz-") as name:
        folder = Path(name)
        home = {"HOME": str(folder), "HF_ENDPOINT": NOWHERE, "OMLX_CONTEXT_LENGTH": "1024"}
        document = folder / "openapi.json"
        document.write_text(json.dumps(openapi.document()), "utf-8")
        with House(folder / "house", env=home) as house:
            house.furnish()
            house.post("/api/copy", {"source": MODEL, "destination": "copied"})
            before = house.memory()
            code = attack(house.url, seconds, document)
            print(f"server: {before / 1e6:.0f} MB before, {house.memory() / 1e6:.0f} MB after")
            house.examine()
        return code


if __name__ == "__main__":
    sys.exit(main(int(os.environ.get("FUZZ_SECONDS", "60"))))
