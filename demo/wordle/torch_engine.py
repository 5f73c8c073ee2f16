"""A stand-in for vLLM where it cannot be installed: torch, the routes that the demo uses, and a follower that writes
into the model in place, between two batches.

    python -m wordle.torch_engine --port N --run RUN --name MODEL MIRROR

MIRROR is a checkpoint to start from; it is not changed.
"""

import argparse
import asyncio
import contextlib
import logging
import threading
import time

import torch
import transformers
import weightwire as ww
from aiohttp import web
from weightwire.integrations import _routes
from weightwire.integrations._engine_status import EngineStatus
from weightwire.integrations._version_headers import VERSION_HEADER, VERSION_SPANS_HEADER, spans_value

MOST_BYTES = 1 << 20
MOST_AT_ONCE = 128
MOST_TOKENS = 256
POLL_SECONDS = 0.2


class Engine:
    """The model. One thread generates and updates; requests wait for it. A second one follows."""

    def __init__(self, mirror, run, threads):
        torch.set_num_threads(threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(mirror, dtype=torch.bfloat16)
        self._follower = ww.Follower(run, dict(self._model.state_dict()), name="torch", poll_interval=POLL_SECONDS)
        self._waiting = []
        self._changed = threading.Condition()
        self._staged = None
        self._status = EngineStatus(run, None, None, "wordle.torch_engine")
        self._pinned = None  # as the user wants it
        self._update(self._follower.wait(version=0))

    @property
    def status(self):
        return self._status.fields

    def pin(self, version):
        self._pinned = self.status["version"] if version is None else version
        self.status["pinned_version"] = self._pinned

    def unpin(self):
        self._pinned = self.status["pinned_version"] = None

    def start(self, loop):
        self._loop = loop
        threading.Thread(target=self._generate_for_ever, daemon=True).start()
        threading.Thread(target=self._follow_for_ever, daemon=True).start()

    async def complete(self, prompt, count, temperature, seed):
        """Tokens, their log-probabilities, and the version that made them."""
        done = self._loop.create_future()
        with self._changed:
            self._waiting.append((prompt, count, temperature, seed, done))
            self._changed.notify()
        return await done

    def _follow_for_ever(self):
        pinned = None
        while True:
            update = None
            try:
                if self._pinned != pinned:
                    pinned = self._pinned
                    if pinned is None:
                        self._follower.unpin()
                    else:
                        self._follower.pin(pinned)
                update = self._follower.poll()
                self._status.set_error(None)
            except ww.WeightwireError as error:
                self._status.set_error(error)
            self._status.set_follower(self._follower.status)
            self._status.update_lag()
            if update is None or self._pinned != pinned:
                time.sleep(POLL_SECONDS)
                continue
            with self._changed:  # the generating thread writes it
                self._staged = update
                self._changed.notify()
                self._changed.wait_for(lambda: self._staged is None)

    def _update(self, update):
        start = time.monotonic()
        if update is not None:
            update.apply()
        applied = time.monotonic()
        status = self._follower.status
        self._status.set_held(status.version, status.step, status.digest, None)
        self._status.set_follower(status)
        self._status.update_lag()
        if update is not None:
            more = {"from_version": update.from_version, "bytes_received": update.bytes_fetched}
            self._status.updated(status.version, applied - start, **more)
        self._follower.verify()  # raises if the weights are not that version's
        elements = sum(tensor.numel() for tensor in self._model.state_dict().values())
        self._status.verified(status.version, elements, time.monotonic() - applied)

    def _generate_for_ever(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._staged)
                if self._staged is not None:
                    try:
                        self._update(self._staged)
                    except ww.WeightwireError as error:
                        self._status.set_error(error)
                    self._staged = None
                    self._changed.notify_all()
                batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            if batch:
                results = self._generate(batch)
                for (*_, done), result in zip(batch, results, strict=True):
                    self._loop.call_soon_threadsafe(_finish, done, result)

    @torch.no_grad()
    def _generate(self, batch):
        version = self.status["version"]
        sequences = [list(prompt) for prompt, *_ in batch]
        results = [([], []) for _ in batch]
        chances = [torch.Generator().manual_seed(seed) for *_, seed, _ in batch]
        for position in range(max(count for _, count, *_ in batch)):
            live = [row for row, (_, count, *_) in enumerate(batch) if position < count]
            longest = max(len(sequences[row]) for row in live)
            # Padding comes last, so causal attention never sees it.
            padded = torch.tensor([sequences[row] + [0] * (longest - len(sequences[row])) for row in live])
            last = torch.tensor([len(sequences[row]) - 1 for row in live])
            logits = self._model(input_ids=padded).logits[torch.arange(len(live)), last].float()
            for row, line in zip(live, logits, strict=True):
                logprobs = torch.log_softmax(line, -1)
                temperature = batch[row][2]
                if temperature == 0:
                    token = int(line.argmax())
                else:
                    token = int(torch.multinomial(torch.softmax(line / temperature, -1), 1, generator=chances[row]))
                sequences[row].append(token)
                results[row][0].append(token)
                results[row][1].append(float(logprobs[token]))
        return [(tokens, logprobs, version) for tokens, logprobs in results]


def _finish(done, result):
    if not done.done():
        done.set_result(result)


def routes(engine, name):
    async def complete(request):
        try:
            body = await request.json()
            prompt, count = body["prompt"], int(body.get("max_tokens", 16))
            seed, temperature = int(body.get("seed") or 0) % 2**63, float(body.get("temperature", 1.0))
            if not (isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt)):
                raise ValueError("prompt must be a list of tokens")
            if not (count >= 1 and len(prompt) + count <= MOST_TOKENS and temperature >= 0):
                raise ValueError(f"prompt and completion have at most {MOST_TOKENS} tokens")
        except (ValueError, KeyError, TypeError) as error:
            refused = _routes.error_answer(ww.InvalidArgumentError(f"cannot complete the prompt: {error}"))
            return web.json_response(refused.body, status=refused.status)
        tokens, logprobs, version = await engine.complete(prompt, count, temperature, seed)
        choice = {"index": 0, "text": "", "token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}
        headers = {VERSION_HEADER: str(version), VERSION_SPANS_HEADER: spans_value([[(version, 0, len(tokens))]])}
        return web.json_response({"model": name, "choices": [choice]}, headers=headers)

    async def follow(request):
        answer = _routes.answer(engine, request.path, await request.read())
        return web.json_response(answer.body, status=answer.status)

    async def health(request):
        return web.json_response({})

    async def models(request):
        return web.json_response({"data": [{"id": name, "max_model_len": MOST_TOKENS}]})

    return [
        *(web.route(method, path, follow) for path, method in _routes.METHODS.items()),
        *(web.post("/v1/completions", complete), web.get("/health", health), web.get("/v1/models", models)),
    ]


async def serve(arguments):
    engine = Engine(arguments.mirror, arguments.run, arguments.threads)
    engine.start(asyncio.get_running_loop())
    app = web.Application(client_max_size=MOST_BYTES)
    app.add_routes(routes(engine, arguments.name))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", arguments.port, backlog=512).start()
    await asyncio.Event().wait()


def main():
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("mirror")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
