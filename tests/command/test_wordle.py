"""The demo's game: marks as in Wordle, repeated letters included, and a server that no request can crash."""

import http.client
import itertools
import json
import socket
import sys
import threading

import pytest
from test_command_roundtrip import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "demo"))

from wordle import environment_server, rules, tokens
from wordle.words import words


@pytest.mark.parametrize(
    "secret, guess, marks",
    [
        ("crane", "crane", "GGGGG"),
        ("crane", "slate", "XXGXG"),
        ("crane", "nacre", "YYYYG"),
        ("abbey", "babes", "YYGGX"),  # both b: one right, one elsewhere
        ("abbey", "kebab", "XYGYY"),
        ("eagle", "geese", "YYXXG"),  # three e against two: the right one first, then from the left
        ("robot", "floor", "XXYGY"),
        ("those", "geese", "XXXGG"),  # one e, and it is right: the others are nowhere
        ("aaabb", "bbaaa", "YYGYY"),
    ],
)
def test_marks(secret, guess, marks):
    assert rules.feedback(secret, guess) == marks


def test_marks_never_count_a_letter_more_often_than_the_secret_has_it():
    for secret, guess in itertools.product(
        ["".join(letters) for letters in itertools.product("abc", repeat=5)], repeat=2
    ):
        marks = rules.feedback(secret, guess)
        for letter in "abc":
            marked = sum(g == letter and m != rules.NOWHERE for g, m in zip(guess, marks, strict=True))
            assert marked == min(secret.count(letter), guess.count(letter))
        assert [m == rules.RIGHT for m in marks] == [s == g for s, g in zip(secret, guess, strict=True)]


def test_the_secret_stays_consistent():
    known = words(48)
    for secret, guess in itertools.product(known, known):
        assert secret in rules.consistent(known, [(guess, rules.feedback(secret, guess))])


def test_a_game_ends_when_it_is_solved_or_the_guesses_are_used_up():
    game = rules.Game("crane", frozenset(["crane", "slate"]), 3)
    assert game.guess("slate") == "XXGXG" and not game.done
    assert game.guess("crane") == "GGGGG" and game.done and game.solved
    assert game.reward == 1
    with pytest.raises(ValueError):
        game.guess("slate")
    game = rules.Game("crane", frozenset(["crane", "slate"]), 2)
    assert game.guess("zzzzz") == "XXXXX"  # no word, but five letters
    assert game.guess("Crane") is None
    assert game.done and not game.solved
    assert game.reward == pytest.approx(-0.1)


def test_words_are_five_letters_and_differ():
    known = words(48)
    assert len(set(known)) == 48 and all(rules.is_guess(word) for word in known)
    with pytest.raises(ValueError):
        words(1_000_000)


# --- the environment server ---


@pytest.fixture(scope="module")
def running():
    server = environment_server.EnvironmentServer(0, 48, 3)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def post(running):
    connection = http.client.HTTPConnection("127.0.0.1", running.server_port, timeout=20)

    def send(path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    yield send
    connection.close()


def test_a_task_is_the_same_secret_each_time(post, running):
    secret = running.environment.secret_of(7)
    for _ in range(2):
        status, game = post("/games", {"task": 7})
        assert (status, game["length"], game["guesses"]) == (200, 5, 3)
        assert post(f"/games/{game['game']}/guess", {"guess": secret}) == (
            200,
            {"marks": "GGGGG", "valid": True, "done": True, "solved": True, "reward": 1.0},
        )
    assert len({running.environment.secret_of(task) for task in range(500)}) == 48


@pytest.mark.parametrize(
    "guess", ["", "cran", "cranes", "CRANE", "cr ne", "crané", "x" * 2000, 5, None, ["crane"], {}, "\0" * 5]
)
def test_a_malformed_guess_is_part_of_the_game(post, guess):
    _, game = post("/games", {"task": 1})
    path = f"/games/{game['game']}/guess"
    answers = [post(path, {"guess": guess}) for _ in range(3)]
    assert [status for status, _ in answers] == [200, 200, 200]
    assert all(answer["marks"] is None and not answer["valid"] for _, answer in answers)
    assert answers[-1][1]["done"] and answers[-1][1]["reward"] == pytest.approx(-0.1)
    assert post(path, {"guess": "crane"})[0] == 404


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/games", b"{", 400),
        ("/games", b"[" * 4000, 400),
        ("/games", b"\xff\xfe", 400),
        ("/games", [], 400),
        ("/games", {}, 400),
        ("/games", {"task": -1}, 400),
        ("/games", {"task": True}, 400),
        ("/games", {"task": "1"}, 400),
        ("/games/none/guess", {"guess": "crane"}, 404),
        ("/elsewhere", {}, 404),
        ("/games", b" " * (environment_server.MOST_BYTES + 1), 413),
    ],
)
def test_what_is_not_understood_is_refused_and_the_service_goes_on(post, path, body, status):
    got, answer = post(path, body)
    assert got == status and answer["error"]
    assert post("/games", {"task": 1})[0] == 200


def test_a_guess_without_a_guess_is_refused_and_does_not_count(post):
    _, game = post("/games", {"task": 1})
    assert post(f"/games/{game['game']}/guess", {})[0] == 400
    for _ in range(3):
        status, answer = post(f"/games/{game['game']}/guess", {"guess": "zzzzz"})
    assert status == 200 and answer["done"]


def test_a_request_that_does_not_say_its_length_is_refused(running):
    with socket.create_connection(("127.0.0.1", running.server_port), timeout=20) as connection:
        connection.sendall(b"POST /games HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1] == b"413"


def test_the_oldest_game_is_forgotten(running):
    environment = running.environment
    first = environment.begin({"task": 0})["game"]
    for task in range(environment_server.MOST_GAMES):
        environment.begin({"task": task})
    with pytest.raises(environment_server.RequestError):
        environment.guess(first, {"guess": "crane"})


def test_games_are_played_side_by_side(running):
    def play(task, results):
        connection = http.client.HTTPConnection("127.0.0.1", running.server_port, timeout=20)

        def send(path, body):
            connection.request("POST", path, json.dumps(body))
            return json.loads(connection.getresponse().read())

        for _ in range(20):
            name = send("/games", {"task": task})["game"]
            answer = send(f"/games/{name}/guess", {"guess": running.environment.secret_of(task)})
            results.append(answer["solved"])
        connection.close()

    results = []
    threads = [threading.Thread(target=play, args=(task, results)) for task in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 160


# --- a game as tokens ---


def test_each_letter_and_each_mark_of_a_letter_is_one_token():
    assert [tokens.VOCABULARY[t] for t in tokens.guess_tokens("crane")] == ["c", "r", "a", "n", "e"]
    said = tokens.answer_tokens("crane", rules.feedback("nacre", "crane"))
    assert [tokens.VOCABULARY[t] for t in said] == ["cY", "rY", "aY", "nY", "eG"]
    assert len(set(tokens.VOCABULARY)) == len(tokens.VOCABULARY)


def test_what_a_model_says_comes_back_as_a_guess_or_as_something_that_is_none():
    assert tokens.guess_of(tokens.guess_tokens("crane")) == "crane"
    strange = [[], [0, 1, 2, 3, 4], tokens.answer_tokens("crane", "GGGGG"), [10**9, -1, 5, 5, 5]]
    assert not any(rules.is_guess(tokens.guess_of(said)) for said in strange)
    assert tokens.answer_tokens("?", None) == [tokens.IDS[tokens.REFUSED]]
