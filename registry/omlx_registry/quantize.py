"""A recipe: what a quantization name means in MLX; a pure table, it touches no weights (`quantize_model` does).

Names come from three traditions, in any letter case: ggml's as Ollama uses them (q4_K_M, q8_0, f16), MLX's own (4bit,
mxfp4, mixed_4_6) and Ollama's for MLX models (int4, int8, fp8). ggml's formats do not exist in MLX; each name gets the
MLX form nearest in size and intent. MLX's affine groups of 64 take half a bit per weight besides the codes, just as
Q4_0, Q5_0 and Q8_0 do:

    q4_0 q4_1 q4_K_S 4bit int4 → 4 bits      q4_K_M q4_K → 4 bits, 6 where it matters (mlx-lm's mixed_4_6)
    q5_0 q5_1 q5_K_S 5bit → 5 bits           q5_K_M → 5 bits, 6 where it matters
    q6_K 6bit → 6 bits                       q8_0 8bit int8 → 8 bits
    q3_K_S 3bit → 3 bits                     q3_K_M q3_K_L → 3 bits, 4 or 6 where it matters; q2_K → 2 and 6
    mxfp4 mxfp8 nvfp4 → MLX's modes          f16 bf16 f32 → no quantization, that type

"Where it matters" is the choice llama.cpp made for its K_M files: value and down projections of the first and last
eighth of the layers and of every third between, and the output layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from omlx_registry.errors import CreateError
from omlx_registry.weights import Quantization

DType = Literal["float32", "float16", "bfloat16"]

GROUP_SIZES: Final = {"affine": 64, "mxfp4": 32, "mxfp8": 32, "nvfp4": 16}
UNQUANTIZED_TYPES: Final = frozenset({"F16", "BF16", "F32"})


@dataclass(frozen=True, slots=True)
class Recipe:
    """`quantization` is None for the plain types, which set `dtype` instead; `high_bits` > 0 makes it a mixed one.

    `label` is the name to show: the user's, as Ollama spells it.
    """

    label: str
    quantization: Quantization | None
    dtype: DType | None = None
    high_bits: int = 0

    def for_module(self, path: str, columns: int, *, layers: int, tied: bool) -> Quantization | None:
        """How the module at `path` ("model.layers.3.mlp.down_proj"), with rows of `columns` weights, is quantized.

        `layers` counts the model's layers; `tied` says that the embedding is also the output layer. Rows that do not
        divide into the recipe's groups take groups of 32, or stay as they are (None).
        """
        base = self.quantization
        if base is None:
            return None
        bits = base.bits
        if self.high_bits and _matters(path, layers, tied=tied):
            bits = self.high_bits
        sizes = (base.group_size, 32) if base.mode == "affine" else (base.group_size,)
        for size in sizes:
            if columns % size == 0:
                return Quantization(size, bits, base.mode)
        return None


def _affine(label: str, bits: int, high_bits: int = 0) -> Recipe:
    return Recipe(label, Quantization(GROUP_SIZES["affine"], bits), high_bits=high_bits)


def _floating(label: str, bits: int) -> Recipe:
    return Recipe(label, Quantization(GROUP_SIZES[label], bits, label))


_RECIPES: Final[dict[str, Recipe]] = {
    "f32": Recipe("F32", None, "float32"),
    "f16": Recipe("F16", None, "float16"),
    "bf16": Recipe("BF16", None, "bfloat16"),
    "q2_k": _affine("Q2_K", 2, 6),
    "q3_k_s": _affine("Q3_K_S", 3),
    "q3_k_m": _affine("Q3_K_M", 3, 4),
    "q3_k_l": _affine("Q3_K_L", 3, 6),
    "q4_0": _affine("Q4_0", 4),
    "q4_1": _affine("Q4_1", 4),
    "q4_k_s": _affine("Q4_K_S", 4),
    "q4_k_m": _affine("Q4_K_M", 4, 6),
    "q5_0": _affine("Q5_0", 5),
    "q5_1": _affine("Q5_1", 5),
    "q5_k_s": _affine("Q5_K_S", 5),
    "q5_k_m": _affine("Q5_K_M", 5, 6),
    "q6_k": _affine("Q6_K", 6),
    "q8_0": _affine("Q8_0", 8),
    "2bit": _affine("2bit", 2),
    "3bit": _affine("3bit", 3),
    "4bit": _affine("4bit", 4),
    "5bit": _affine("5bit", 5),
    "6bit": _affine("6bit", 6),
    "8bit": _affine("8bit", 8),
    "int4": _affine("int4", 4),
    "int8": _affine("int8", 8),
    "mixed_2_6": _affine("mixed_2_6", 2, 6),
    "mixed_3_4": _affine("mixed_3_4", 3, 4),
    "mixed_3_6": _affine("mixed_3_6", 3, 6),
    "mixed_4_6": _affine("mixed_4_6", 4, 6),
    "mxfp4": _floating("mxfp4", 4),
    "mxfp8": _floating("mxfp8", 8),
    "nvfp4": _floating("nvfp4", 4),
}
_ALIASES: Final[dict[str, str]] = {
    "fp32": "f32",
    "float32": "f32",
    "fp16": "f16",
    "float16": "f16",
    "bfloat16": "bf16",
    "q3_k": "q3_k_m",
    "q4_k": "q4_k_m",
    "q5_k": "q5_k_m",
    "q2": "2bit",
    "q3": "3bit",
    "q4": "int4",
    "q5": "5bit",
    "q6": "6bit",
    "q8": "int8",
    "fp4": "int4",
    "fp8": "int8",
}
NAMES: Final = tuple(sorted({*_RECIPES, *_ALIASES}))


def find_recipe(name: str) -> Recipe | None:
    """The recipe of that name, in any letter case, `-` as good as `_`; None when there is none."""
    key = re.sub(r"[\s-]", "_", name.strip().lower()).replace("_bit", "bit")
    return _RECIPES.get(_ALIASES.get(key, key))


def recipe(name: str) -> Recipe:
    """Like `find_recipe`, for a user's request: an unknown name is Ollama's error (a CreateError, status 500)."""
    recipe_of_name = find_recipe(name)
    if recipe_of_name is None:
        kinds = ", ".join(entry.label for entry in _RECIPES.values())
        raise CreateError(f"unsupported quantization type {name.upper()} - supported types are {kinds}", 500)
    return recipe_of_name


def require_unquantized(level: str) -> None:
    """Only full-precision models are quantized: `level` is the source's quantization level. Raises Ollama's error."""
    if level.upper() not in UNQUANTIZED_TYPES:
        raise CreateError("quantization is only supported for F16, BF16 and F32 models", 500)


def _matters(path: str, layers: int, *, tied: bool) -> bool:
    if "lm_head" in path:
        return True
    if "embed_tokens" in path and "per_layer" not in path:
        return tied
    if not any(part in path for part in ("v_proj", "v_a_proj", "v_b_proj", "down_proj")):
        return False
    numbers = [int(part) for part in path.split(".") if part.isdecimal()]
    index, eighth = (numbers[0] if numbers else 0), layers // 8
    return index < eighth or index >= 7 * layers // 8 or (index - eighth) % 3 == 2


def quantization_config(default: Quantization, modules: Mapping[str, Quantization]) -> dict[str, Any]:
    """config.json's "quantization": the default, and an entry for each module that differs from it."""
    return default.as_config() | {path: q.as_config() for path, q in modules.items() if q != default}
