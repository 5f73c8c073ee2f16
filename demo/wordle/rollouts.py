"""TRL's rollout worker, with games instead of chats: no template can tell single letters and their marks."""

import uuid

import aiohttp
from trl.experimental.async_grpo.async_rollout_worker import TurnRecord, _chain_to_sequences
from weightwire.integrations.trl import RolloutWorker, TaggingLoop

from wordle.play import play


class GameLoop(TaggingLoop):
    """A group of rollouts plays the same secret. The environment says the reward."""

    _provides_rollout_reward = True

    def __init__(self, *, environment_url, first_task, **options):
        super().__init__(**options)
        self._environment_url = environment_url
        self._first_task = first_task
        self.reward_func_names.append("game")

    async def generate_rollout(self, prompt, tool_dict, tools, group_id=0):
        played = await play(self._ask, self._generate_one_turn, self._first_task + group_id)
        # Each prompt goes on where the turn before ended, so this is one row.
        rows, _ = _chain_to_sequences([TurnRecord(*turn) for turn in played.turns], uuid.uuid4().hex, 1)
        said = [{"role": "assistant", "content": " ".join(played.guesses)}]
        made = [token for _, tokens, _ in played.turns for token in tokens]
        return said, made, rows, 0, 0, played.reward

    async def _ask(self, path, body):
        async def post():
            timeout = aiohttp.ClientTimeout(total=self.request_timeout)
            async with self.session.post(self._environment_url + path, json=body, timeout=timeout) as answer:
                answer.raise_for_status()
                return await answer.json()

        return await post()


class GameWorker(RolloutWorker):
    _loop_cls = GameLoop
