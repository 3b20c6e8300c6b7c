"""Long texts are tokenized in pieces: the same ids, no other thread waits, and the work ends where enough is known."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from omlx.engine import tokenization
from omlx.engine.encode.rows import RowMaker, TooLong
from omlx.engine.tokenization import PIECE, fast_encode, head, ids, pieces, tail

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    *Path(tokenization.__file__).read_text("utf-8").splitlines(keepends=True),
    *Path(pieces.__code__.co_filename).with_name("engine.py").read_text("utf-8").splitlines(keepends=True),
    "他们在森林里发现了一个古老的宝藏。然后他们,回家了、很高兴。\n",
    "Größe, élan, naïve, Straße: it's what they'd have said.\n",
]


def tokenizer(kind: str) -> Tokenizer:
    """As the families have them, trained on a little text; a copy of its own for each caller."""
    return Tokenizer.from_str(trained(kind))


@functools.cache
def trained(kind: str) -> str:
    special = ["<unk>", AddedToken("<|two words|>", special=True)]
    match kind:
        case "byte level, GPT-2":
            made = Tokenizer(models.BPE())
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "byte level, cl100k":
            made = Tokenizer(models.BPE())
            split = pre_tokenizers.Split(Regex(CL100K), "isolated")
            made.pre_tokenizer = pre_tokenizers.Sequence(
                [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            )
        case "Llama 2":
            made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
            made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            made.decoder = decoders.Replace("▁", " ")
        case "Gemma":
            made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
            made.normalizer = normalizers.Replace(" ", "▁")
            made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        case "XLM-R":
            made = Tokenizer(models.Unigram())
            made.normalizer = normalizers.NFKC()
            made.pre_tokenizer = pre_tokenizers.Metaspace()
        case _:
            made = Tokenizer(models.WordPiece(unk_token="<unk>"))
            made.normalizer = normalizers.BertNormalizer()
            made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = {
        "XLM-R": lambda: trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token="<unk>"),
        "BERT": lambda: trainers.WordPieceTrainer(vocab_size=800, special_tokens=special, show_progress=False),
    }.get(kind, lambda: trainers.BpeTrainer(vocab_size=800, special_tokens=special, show_progress=False))()
    made.train_from_iterator(CORPUS, trainer)
    return str(made.to_str())


TEXTS = {
    "code": "".join(CORPUS) * 4,
    "prose": "The quick brown fox, who'd seen 1234567 dogs,  jumped.\n\nAgain <|two words|> it ran. " * 1500,
    "Chinese": CORPUS[-2] * 3000,
    "no words at all": "1234567890" * 8_000 + " \n\t" * 8_000,
    "one letter": "a" * 80_000,
}
"""Several pieces each, of SMALL characters."""
SMALL = PIECE // 4


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte level, GPT-2", "byte level, cl100k", "Llama 2", "Gemma", "XLM-R", "BERT"])
def test_pieces_have_the_tokens_of_the_whole(kind: str, text: str) -> None:
    made, whole = tokenizer(kind), TEXTS[text]
    encode = fast_encode(made)
    assert len(whole) > 4 * SMALL
    found, read = ids(whole, encode, piece=SMALL)
    assert read == len(whole)
    assert found == made.encode(whole, add_special_tokens=False).ids


def test_texts_with_words_are_cut_into_small_pieces() -> None:
    encode = fast_encode(tokenizer("byte level, cl100k"))
    for text in (TEXTS["prose"], TEXTS["Chinese"]):
        assert max(map(len, pieces(text, encode))) < PIECE
        assert "".join(pieces(text, encode)) == text


def test_a_text_without_any_place_to_cut_is_cut_all_the_same() -> None:
    encode = fast_encode(tokenizer("byte level, cl100k"))
    assert [len(piece) for piece in pieces("7" * 2_500_000, encode)] == [1 << 20, 1 << 20, 2_500_000 - (2 << 20)]


def test_tokenizing_ends_once_there_are_enough_tokens() -> None:
    encode = fast_encode(tokenizer("byte level, cl100k"))
    text = "four words in here. " * 1_000_000
    found, read = ids(text, encode, most=1000)
    assert len(found) > 1000
    assert read < PIECE
    assert found == encode([text[:PIECE]])[0][: len(found)]


def test_what_is_kept_of_a_text_that_may_be_cut_holds_more_than_the_wanted_tokens() -> None:
    encode = fast_encode(tokenizer("byte level, cl100k"))
    text = "".join(f"word number {at}, " for at in range(200_000))
    first, last = head(text, encode, 50_000), tail(text, encode, 50_000, longest=16)
    assert text.startswith(first)
    assert text.endswith(last)
    for kept in (first, last):
        assert len(kept) < len(text) / 2
        assert len(ids(kept, encode)[0]) > 50_000
    assert head("short", encode, 1) == tail("short", encode, 1, longest=16) == "short"


def test_the_work_can_be_ended_between_two_pieces() -> None:
    class Unwanted(Exception):
        pass

    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Unwanted

    with pytest.raises(Unwanted):
        ids("four words in here. " * 100_000, fast_encode(tokenizer("byte level, GPT-2")), check=check)
    assert len(calls) == 3


def test_other_threads_run_while_a_text_is_tokenized() -> None:
    """They do so even where nothing ever makes a thread give the lock away."""
    encode, text = fast_encode(tokenizer("byte level, cl100k")), "four words in here. " * 50_000
    before = sys.getswitchinterval()
    turns, begun, done = [0], threading.Event(), threading.Event()

    def count() -> None:
        begun.set()
        while not done.wait(0):
            turns[0] += 1

    other = threading.Thread(target=count)
    sys.setswitchinterval(0.0005)
    try:
        other.start()
        begun.wait()
        at = turns[0]
        encode([text])
        assert turns[0] - at > 1000
    finally:
        sys.setswitchinterval(before)
        done.set()
        other.join()


def test_memory_does_not_grow_with_the_text() -> None:
    """200 times the text was taken before: 4 GB for this one."""
    script = """
import resource, sys
from tests.engine.test_tokenization import tokenizer
from omlx.engine.encode.rows import RowMaker, TooLong
from omlx.engine.tokenization import fast_encode, ids
made = tokenizer("byte level, cl100k")
text = "four words in here. " * 1_000_000
unit = 1024 if sys.platform == "linux" else 1
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found, read = ids(text, fast_encode(made), most=1_000_000)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit)
"""
    grown = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    assert grown < 150 << 20


@pytest.mark.parametrize("kind", ["BERT", "XLM-R", "byte level, cl100k"])
def test_a_long_text_gives_the_row_that_a_tokenizer_makes_of_all_of_it(kind: str) -> None:
    made, limit = tokenizer(kind), 512
    made.post_processor = processors.TemplateProcessing(
        single="<unk> $A <unk>", pair="<unk> $A <unk> $B:1 <unk>:1", special_tokens=[("<unk>", 0)]
    )
    maker = RowMaker(Tokenizer.from_str(made.to_str()), limit=limit, filler=0, segments=True)
    made.enable_truncation(limit, strategy="longest_first")
    long, short = TEXTS["prose"], "a short question"
    # Of two long texts the tokenizer itself makes every pair of their parts: minutes.
    both = (long[:6000], long[:5000])
    texts: list[str | tuple[str, str]] = [long, short, (short, long), (long, short), both, (short, short)]
    expected = [made.encode(text) if isinstance(text, str) else made.encode(*text) for text in texts]
    assert [row.tokens for row in maker.rows(texts, truncate=True)] == [found.ids for found in expected]
    longest = [len(row.tokens) for row in maker.rows([(long, long)], truncate=True)]
    assert longest == [limit]
    for text in texts[:2]:
        if text is long:
            with pytest.raises(TooLong):
                maker.rows([text], truncate=False)
        else:
            maker.rows([text], truncate=False)
