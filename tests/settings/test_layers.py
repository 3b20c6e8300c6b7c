"""The structure of the packages: layers documented as they are enforced, no import hidden in a function without a
reason, and one class for a name.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("omlx", "registry/omlx_registry", "cache/omlx_cache")
OURS = {"omlx", "omlx_registry", "omlx_cache"}
LIBRARIES = {"registry/omlx_registry", "cache/omlx_cache"}
ROWS = re.findall(r"^\| (\d+) \| `([^`]+)` \|", (ROOT / "docs/architecture.md").read_text("utf-8"), re.MULTILINE)
"""Layer and package."""


def test_the_table_of_packages_has_the_layers_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["omlx"]]
    enforced = [{f"omlx/{name.strip()}" for name in layer.split("|")} for layer in layers] + [LIBRARIES]
    documented: dict[int, set[str]] = {}
    for row in re.finditer(
        r"^\| (\d+) \| `([^`]+)` \|", (ROOT / "docs/architecture.md").read_text("utf-8"), re.MULTILINE
    ):
        documented.setdefault(int(row[1]), set()).add(row[2])
    assert list(documented) == sorted(documented, reverse=True)
    assert list(documented.values()) == enforced


def test_every_package_of_the_table_exists() -> None:
    for row in re.finditer(
        r"^\| \d+ \| `([^`]+)` \|", (ROOT / "docs/architecture.md").read_text("utf-8"), re.MULTILINE
    ):
        assert (ROOT / row[1]).is_dir() or (ROOT / f"{row[1]}.py").is_file(), row[1]


def hidden_imports(file: Path) -> Iterator[int]:
    """Lines of the file on which a function imports a module of ours."""
    for function in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS) or (
                    isinstance(node, ast.Import) and any(name.name.split(".")[0] in OURS for name in node.names)
                ):
                    yield node.lineno


def test_an_import_of_ours_within_a_function_says_why() -> None:
    """The reason stands on its line, or above the group of imports that it belongs to."""
    unexplained = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            lines = file.read_text("utf-8").splitlines()
            for number in set(hidden_imports(file)):
                above = number - 1
                while lines[above - 1].strip().startswith("from "):
                    above -= 1
                if "# " not in lines[number - 1] and not lines[above - 1].strip().startswith("#"):
                    unexplained.append(f"{file.relative_to(ROOT)}:{number}")
    assert not unexplained, "import it at the top of the file, or say what that would cost"


def test_a_class_name_means_one_thing() -> None:
    """Nested classes apart. Whoever searches for a name finds one definition."""
    files: dict[str, list[str]] = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(file.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    files.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert len(files) > 500
    assert {name: where for name, where in files.items() if len(where) > 1} == {}


def test_the_files_that_contributing_names_exist() -> None:
    table = [line for line in (ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines() if line.startswith("| a")]
    assert len(table) == 10
    for row in table:
        named = re.findall(r"`((?:omlx|registry|cache)/[^`]+)`", row)
        assert 1 <= len(named) <= 3, row
        assert all((ROOT / name).exists() for name in named), row


def test_no_file_has_more_than_400_lines() -> None:
    long = {
        str(file.relative_to(ROOT)): count
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        if (count := len(file.read_text("utf-8").splitlines())) > 400
    }
    assert not long, "split each by idea"


def test_only_adapters_know_the_cache_classes_of_mlx_lm() -> None:
    """A new cache class is a file in the folder of adapters, and its line in the table."""
    makers = {ROOT / "omlx/engine/model_adapters.py"}
    """It makes the caches of a model, as the code of other models does."""
    adapters = ROOT / "cache/omlx_cache/adapters"
    elsewhere = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.ImportFrom) and re.fullmatch(r"mlx_(lm|vlm)\.models\.cache", node.module or ""):
                    classes = [name.name for name in node.names if name.name[0].isupper()]
                    if classes and file.parent != adapters and file not in makers:
                        elsewhere.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert not elsewhere
    table = (adapters / "table.py").read_text("utf-8")
    lines = re.findall(r"^from omlx_cache\.adapters\.(\w+) import [A-Z]+$", table, re.MULTILINE)
    files = {file.stem for file in adapters.glob("*.py")} - {"__init__", "adapter", "proof", "table"}
    assert set(lines) == files
