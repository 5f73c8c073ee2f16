"""The environment: an HTTP server that has the secrets and answers guesses.

    POST /games {"task": 17}                 -> {"game": "…", "length": 5, "guesses": 3}
    POST /games/ID/guess {"guess": "crane"}  -> {"marks": "XYXXG", "valid": true, "done": false, "solved": false}
    GET /health

A task is always the same secret. When a game is done, the answer has its "reward". A guess that is not five letters is
part of the game, and gets no marks (null). An invalid request gets a status of 400, 404, 409 or 413, and a sentence.
"""

import argparse
import collections
import hashlib
import http.server
import json
import random
import sys
import threading
import uuid

from wordle.rules import LENGTH, Game
from wordle.words import words

MOST_GAMES = 20_000  # the oldest is forgotten
MOST_BYTES = 4096  # of a request
SECONDS = 60  # a connection may be silent


class RequestError(Exception):
    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


class Environment:
    """All games. Thread-safe."""

    def __init__(self, count, guesses):
        self._words = words(count)
        self._known = frozenset(self._words)
        self._guesses = guesses
        self._games = collections.OrderedDict()
        self._lock = threading.Lock()

    def secret_of(self, task):
        return random.Random(hashlib.sha256(b"wordle %d" % task).digest()).choice(self._words)

    def begin(self, body):
        task = body.get("task")
        if not isinstance(task, int) or isinstance(task, bool) or not 0 <= task < 2**63:
            raise RequestError(400, "task must be a whole number from 0 on")
        name = uuid.uuid4().hex
        with self._lock:
            self._games[name] = Game(self.secret_of(task), self._known, self._guesses)
            if len(self._games) > MOST_GAMES:
                self._games.popitem(last=False)
        return {"game": name, "length": LENGTH, "guesses": self._guesses}

    def guess(self, name, body):
        if "guess" not in body:
            raise RequestError(400, 'a guess is given as {"guess": "crane"}')
        with self._lock:
            game = self._games.get(name)
            if game is None:
                raise RequestError(404, "there is no such game, or it was long ago")
            if game.done:
                raise RequestError(409, "this game is over")
            marks = game.guess(body["guess"])
            answer = {"marks": marks, "valid": game.made[-1][2], "done": game.done, "solved": game.solved}
            if game.done:
                answer["reward"] = game.reward
                del self._games[name]
        return answer


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    disable_nagle_algorithm = True

    def do_GET(self):
        if self.path == "/health":
            self._answer(200, {})
        else:
            self._answer(404, {"error": "there is nothing here"})

    def do_POST(self):
        try:
            self._answer(200, self._route(self._body()))
        except RequestError as error:
            self.close_connection = self.close_connection or error.status == 413
            self._answer(error.status, {"error": str(error)})

    def _route(self, body):
        match self.path.strip("/").split("/"):
            case ["games"]:
                return self.server.environment.begin(body)
            case ["games", name, "guess"]:
                return self.server.environment.guess(name, body)
        raise RequestError(404, "there is nothing here")

    def _body(self):
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            # The rest of the connection cannot be told from what was not read.
            raise RequestError(413, f"a request has at most {MOST_BYTES} bytes, and says how many")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise RequestError(400, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise RequestError(400, "the body is not a JSON object")
        return body

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


class EnvironmentServer(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def __init__(self, port, count, guesses):
        super().__init__(("127.0.0.1", port), Handler)
        self.environment = Environment(count, guesses)

    def handle_error(self, request, client_address):
        # Players come and go.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--words", type=int, default=48)
    parser.add_argument("--guesses", type=int, default=3)
    arguments = parser.parse_args()
    EnvironmentServer(arguments.port, arguments.words, arguments.guesses).serve_forever()


if __name__ == "__main__":
    main()
