"""The times of the package. ARCHITECTURE.md, "Timeouts, retries and limits", lists them with those of the core; `./dev
lint` compares the two. What the package shares with the command comes from `weightwire._core`."""

from __future__ import annotations

# --- the board of several ranks ---

# The pauses between two looks at the board, while a message is awaited: the first and the last.
FIRST_BOARD_SECONDS = 0.002
LAST_BOARD_SECONDS = 0.05
# The pause while none is awaited. An outgoing message ends it early.
IDLE_BOARD_SECONDS = 0.5
# Something is sent at least this often, because many firewalls cut silent connections.
LONGEST_SILENCE_SECONDS = 30.0
# One attempt to connect to rank 0's board, and the pauses between attempts: the first and the last.
CONNECT_SECONDS = 2.0
FIRST_CONNECT_PAUSE_SECONDS = 0.5
LAST_CONNECT_PAUSE_SECONDS = 10.0
# How long closing waits for the thread that moves messages.
STOP_BOARD_SECONDS = 2.0

# --- engines ---

# How long a process that follows may take to answer another one; its routes never wait.
ANSWER_SECONDS = 10.0
# The pause after an error, and the longest one after updates that failed, each of which may have delayed all requests.
ENGINE_ERROR_SECONDS = 2.0
LONGEST_ENGINE_ERROR_SECONDS = 120.0
# How long processes that read the mirror may delay an update before it fails.
READERS_SECONDS = 30.0
# How long the end of a server waits for the release of the lease.
RELEASE_SECONDS = 3.0
# How often a call checks that the engine still runs.
ENGINE_CHECK_SECONDS = 0.5
# How long the comparison of an engine with its mirror may take. A failure ends the wait earlier.
MATCH_SECONDS = 3600.0
