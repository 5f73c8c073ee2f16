"""The rules of Wordle. No I/O."""

from dataclasses import dataclass, field

LENGTH = 5
RIGHT, ELSEWHERE, NOWHERE = "G", "Y", "X"


def is_guess(text):
    """Whether it is five letters; whether it is a word is another question."""
    return isinstance(text, str) and len(text) == LENGTH and text.isascii() and text.isalpha() and text.islower()


def feedback(secret, guess):
    """A mark for each letter of the guess. A letter is marked at most as often as the secret has it: first where it is
    right, then from the left."""
    left = [s for s, g in zip(secret, guess, strict=True) if s != g]
    marks = []
    for s, g in zip(secret, guess, strict=True):
        if s == g:
            marks.append(RIGHT)
        elif g in left:
            left.remove(g)
            marks.append(ELSEWHERE)
        else:
            marks.append(NOWHERE)
    return "".join(marks)


def consistent(words, history):
    """The words that can still be the secret after these (guess, marks)."""
    return [word for word in words if all(feedback(word, guess) == marks for guess, marks in history)]


@dataclass
class Game:
    """One game. A guess that is no word counts, and is answered; one that is not even five letters counts, and gets no
    marks."""

    secret: str
    words: frozenset
    guesses: int
    made: list = field(default_factory=list)  # (guess, marks, valid)

    @property
    def solved(self):
        return any(marks == RIGHT * LENGTH and valid for _, marks, valid in self.made)

    @property
    def done(self):
        return self.solved or len(self.made) >= self.guesses

    @property
    def reward(self):
        """1 for a solved game, less a tenth of the share of guesses that were no words."""
        invalid = sum(not valid for _, _, valid in self.made)
        return float(self.solved) - 0.1 * invalid / max(1, len(self.made))

    def guess(self, text):
        """The marks, or None for what is not five letters."""
        if self.done:
            raise ValueError("the game is over")
        marks = feedback(self.secret, text) if is_guess(text) else None
        self.made.append((text if is_guess(text) else None, marks, marks is not None and text in self.words))
        return marks
