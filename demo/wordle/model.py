"""The model: a small Qwen3, made on the spot and warm-started on games that a mediocre player played.

python -m wordle.model DIRECTORY [--words N] [--guesses N] [--seed N] [--steps N] [--tied]
"""

import argparse
import os
import random
import time

from wordle.rules import consistent, feedback
from wordle.tokens import BEGINNING, IDS, PAD, VOCABULARY, answer_tokens, guess_tokens, longest, make_tokenizer
from wordle.words import words

STEPS = 450
BATCH = 24
LEARNING_RATE = 4e-3
CLEVER = 0.8  # the share of guesses that use what is known; the rest are any words


def make_model():
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=32,
        max_position_embeddings=1024,
        # Larger weights: fewer of them change in a step at the same learning rate, and it learns no slower.
        initializer_range=0.15,
        # vLLM's packed layers on CPUs cannot share weights exactly.
        tie_word_embeddings=False,
        bos_token_id=BEGINNING[0],
        eos_token_id=IDS["</s>"],
        pad_token_id=IDS[PAD],
    )
    return transformers.Qwen3ForCausalLM(config)


def game_tokens(known, guesses, chance):
    """A game of the mediocre player: tokens, and which of them are its own."""
    secret = chance.choice(known)
    tokens, own, history = list(BEGINNING), [False], []
    for _ in range(guesses):
        guess = chance.choice(consistent(known, history) if chance.random() < CLEVER else known)
        marks = feedback(secret, guess)
        history.append((guess, marks))
        tokens += guess_tokens(guess) + answer_tokens(guess, marks)
        own += [True] * len(guess) + [False] * len(guess)
        if guess == secret:
            break
    return tokens, own


def warm_start(model, known, guesses, seed, steps, say=None):
    """Supervised steps on such games."""
    import torch

    chance = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * max(0.05, 1 - step / steps)
    )
    length = longest(guesses)
    for step in range(steps):
        batch = torch.full((BATCH, length), IDS[PAD])
        labels = torch.full((BATCH, length), -100)
        for row in range(BATCH):
            tokens, own = game_tokens(known, guesses, chance)
            tokens = torch.tensor(tokens)
            batch[row, : len(tokens)] = tokens
            labels[row, : len(tokens)] = torch.where(torch.tensor(own), tokens, -100)
        # Padding comes last, so causal attention never sees it.
        logits = model(input_ids=batch).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if say and (step + 1) % 50 == 0:
            say(step + 1, loss.item())


def make(directory, count, guesses, seed, steps=STEPS, say=None):
    """A directory as `from_pretrained` loads it: fp32 weights, configuration and tokenizer."""
    import torch

    torch.manual_seed(seed)
    model = make_model()
    warm_start(model, words(count), guesses, seed, steps, say)
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)


def publish_first(directory, run):
    """What the servers start from."""
    import torch
    import transformers
    import weightwire as ww

    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    with ww.Publisher(run, model, dtype=torch.bfloat16, tokenizer=tokenizer) as publisher:
        publisher.publish(step=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--run")
    parser.add_argument("--words", type=int, default=48)
    parser.add_argument("--guesses", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    begin = time.monotonic()

    def say(step, loss):
        print(
            f"warm start: step {step} of {arguments.steps}, loss {loss:.3f}, {time.monotonic() - begin:.0f} s",
            flush=True,
        )

    if not os.path.exists(os.path.join(arguments.directory, "config.json")):
        make(arguments.directory, arguments.words, arguments.guesses, arguments.seed, arguments.steps, say)
    if arguments.run:
        publish_first(arguments.directory, arguments.run)


if __name__ == "__main__":
    main()
