"""Playing games: guesses from a server with the completions route, marks from the environment. All over HTTP."""

import asyncio
from dataclasses import dataclass, field

from wordle.rules import LENGTH
from wordle.tokens import BEGINNING, answer_tokens, guess_of


@dataclass
class PlayedGame:
    turns: list = field(default_factory=list)  # (prompt, tokens, log-probabilities)
    guesses: list = field(default_factory=list)
    solved: bool = False
    reward: float = 0.0


async def play(ask, generate, task):
    """One game. `ask(path, body)` goes to the environment; `generate(prompt)` gives tokens and log-probabilities."""
    game = await ask("/games", {"task": task})
    played = PlayedGame()
    tokens = list(BEGINNING)
    while True:
        new, log_probabilities = await generate(tokens)
        guess = guess_of(new)
        answer = await ask(f"/games/{game['game']}/guess", {"guess": guess})
        played.turns.append((tokens, new, log_probabilities))
        played.guesses.append(guess)
        if answer["done"]:
            played.solved, played.reward = answer["solved"], answer["reward"]
            return played
        tokens = tokens + new + answer_tokens(guess, answer["marks"])


async def evaluate(environment, server, model, games, first_task, at_once=64):
    """Fixed games with fixed seeds: the share solved, and the mean reward."""
    import aiohttp

    free = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def post(url, body):
            async with session.post(url, json=body) as answer:
                answer.raise_for_status()
                return await answer.json()

        async def one(number):
            seeds = iter(range(1000 * number, 1000 * number + 1000))

            async def generate(prompt):
                body = {"model": model, "prompt": prompt, "max_tokens": LENGTH, "temperature": 1.0}
                body |= {"seed": next(seeds), "logprobs": 0, "return_token_ids": True}
                (choice,) = (await post(f"{server}/v1/completions", body))["choices"]
                return choice["token_ids"], choice["logprobs"]["token_logprobs"]

            async with free:
                return await play(lambda path, body: post(environment + path, body), generate, first_task + number)

        played = await asyncio.gather(*(one(number) for number in range(games)))
    return sum(game.solved for game in played) / games, sum(game.reward for game in played) / games
