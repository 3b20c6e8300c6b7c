"""How many JSON schemas a reply can be held to, and whether what comes of them obeys.

    python -m bench.schemas FOLDER... [--most 1000] [--walks 1] [--seconds 300]

Every JSON file in the folders that looks like a schema is compiled as for a reply. Of those that are accepted, walks
at random through the grammar are checked with the `jsonschema` package. Prints the share that was accepted, the
reasons of the others, and the keywords that walks did not obey (see docs/text.md for those that are not enforced).
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_KEYWORDS = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "items", "enum", "patternProperties"}
_STEPS = 1500
"""Bytes after which a walk is given up."""


def schemas_in(folders: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema once. A file may hold a list of pairs of a name and a schema."""
    seen: set[str] = set()
    for folder in folders:
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*.json")):
            try:
                value = json.loads(path.read_text())
            except (ValueError, OSError):
                continue
            pairs = value if isinstance(value, list) else [[str(path), value]]
            for name, schema in (pair for pair in pairs if isinstance(pair, list) and len(pair) == 2):
                if isinstance(schema, dict) and _KEYWORDS & schema.keys():
                    digest = hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()
                    if digest not in seen:
                        seen.add(digest)
                        yield name, schema


def byte_tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: at for at, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return tokenizer


class Walker:
    def __init__(self) -> None:
        from omlx.engine.grammar import GrammarCompiler

        self._tokenizer = byte_tokenizer()
        self._size = self._tokenizer.get_vocab_size()
        self._end = self._size - 1
        self.compiler = GrammarCompiler(self._tokenizer, self._size, {self._end})
        self._closing = np.array([self._tokenizer.token_to_id(text) for text in '"}]'])

    def walk(self, matcher: Any, chance: random.Random) -> Any:
        """A value, None where the walk is given up."""
        tokens: list[int] = []
        bits = np.zeros(self.compiler.words, np.uint32)
        for _ in range(_STEPS):
            matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[: self._size])
            if self._end in allowed:
                return json.loads(self._tokenizer.decode(tokens))
            closing = np.intersect1d(allowed, self._closing)
            token = int(chance.choice(closing if closing.size and chance.random() < 0.7 else allowed))
            matcher.consume_token(token)
            tokens.append(token)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=1000, help="schemas that are taken of all, spread evenly")
    parser.add_argument("--walks", type=int, default=1, help="walks of each")
    parser.add_argument("--seconds", type=float, default=300, help="end after so long")
    parser.add_argument("--names", action="store_true", help="print the names of those that were refused")
    wanted = parser.parse_args()
    report(wanted)


def report(wanted: argparse.Namespace) -> None:
    import jsonschema
    from jsonschema.validators import validator_for

    from omlx.engine.grammar import GrammarError
    from omlx.messages.constraint import Grammar

    walker = Walker()
    found = list(schemas_in(wanted.folders))
    step = max(1, -(-len(found) // wanted.most))
    end = time.monotonic() + wanted.seconds
    refused: collections.Counter[str] = collections.Counter()
    broken: collections.Counter[str] = collections.Counter()
    tried = walks = given_up = 0
    slowest = (0.0, "")
    for name, schema in found[::step]:
        if time.monotonic() > end:
            break
        tried += 1
        began = time.monotonic()
        try:
            matcher = walker.compiler.matcher(Grammar("schema", schema))
        except GrammarError as error:
            refused[str(error)] += 1
            if wanted.names:
                print(f"refused {name}: {error}", flush=True)
            continue
        slowest = max(slowest, (time.monotonic() - began, name))
        for at in range(wanted.walks):
            try:
                value = walker.walk(matcher.deep_copy(), random.Random(at))
            except (ValueError, IndexError) as error:
                broken[f"walk: {error}"[:60]] += 1
                continue
            if value is None:
                given_up += 1
                continue
            walks += 1
            try:
                error = jsonschema.exceptions.best_match(validator_for(schema)(schema).iter_errors(value))
            except Exception:  # the schema itself is wrong, or refers to another file
                walks -= 1
                continue
            if error is not None:
                broken[str(error.validator)] += 1
                if wanted.names:
                    print(f"broken {name}: {error.validator} {str(error.message)[:160]}", flush=True)
    accepted = tried - refused.total()
    print(f"{accepted} of {tried} accepted ({100 * accepted / max(tried, 1):.2f} %), {len(found)} in all")
    print(f"{walks} walks, {given_up} given up; not obeyed: {dict(broken.most_common())}")
    print(f"slowest: {slowest[0]:.1f} s, {slowest[1]}")
    for reason, count in refused.most_common():
        print(f"{count:5}  {reason}")


if __name__ == "__main__":
    main()
