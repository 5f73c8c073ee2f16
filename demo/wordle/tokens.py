"""A game as tokens: one for each letter of a guess, and one for each letter with its mark (`c r a n e cX rY aX nX eG`).
With marks apart from their letters, a small model plays blind for long."""

import string

from wordle.rules import ELSEWHERE, LENGTH, NOWHERE, RIGHT

PAD, BEGIN, END, REFUSED = "<pad>", "<s>", "</s>", "<refused>"
LETTERS = list(string.ascii_lowercase)
VOCABULARY = [PAD, BEGIN, END, REFUSED, *LETTERS, *(a + m for a in LETTERS for m in (RIGHT, ELSEWHERE, NOWHERE))]
IDS = {token: number for number, token in enumerate(VOCABULARY)}
BEGINNING = [IDS[BEGIN]]


def longest(guesses):
    """Tokens of a whole game."""
    return 1 + 2 * LENGTH * guesses


def guess_tokens(guess):
    return [IDS[letter] for letter in guess]


def answer_tokens(guess, marks):
    """What follows a guess; `marks` is None for what was not five letters."""
    return [IDS[REFUSED]] if marks is None else [IDS[a + m] for a, m in zip(guess, marks, strict=True)]


def guess_of(tokens):
    """The text that was guessed: five letters, or whatever the model said."""
    return "".join(VOCABULARY[token] if 0 <= token < len(VOCABULARY) else "?" for token in tokens)


def make_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token=REFUSED))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BEGIN, eos_token=END, unk_token=REFUSED
    )
