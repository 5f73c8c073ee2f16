"""What goes wrong in the demo with --chaos: processes are killed, and the bucket fails for a while."""

import random
import time

from wordle.step_table import SERVERS

FOLLOWER = "follower"  # of a mirror that nothing serves; there to be killed
OUTAGE_SECONDS = 8  # of the bucket


class Chaos:
    """Each failure happens once, at a step that the seed chooses."""

    BUCKET = "the bucket"

    def __init__(self, options, outage_file):
        chance = random.Random(options.seed)
        victims = ["trainer", FOLLOWER, chance.choice(SERVERS), *([self.BUCKET] if options.store == "s3" else [])]
        chance.shuffle(victims)
        part = options.steps / (len(victims) + 1)
        self._left = [(int(part * (i + chance.uniform(0.5, 1))), victim) for i, victim in enumerate(victims)]
        self._outage_file = outage_file
        self._outage_ends = None

    def next_victim(self, steps):
        """Returns what fails now, if anything. Starts an outage of the bucket itself; the caller kills and restarts a
        process."""
        if self._outage_ends is not None and time.monotonic() > self._outage_ends:
            self.end()
        if not self._left or not steps or steps[-1]["step"] < self._left[0][0]:
            return None
        _, victim = self._left.pop(0)
        if victim == self.BUCKET:
            self._outage_file.touch()
            self._outage_ends = time.monotonic() + OUTAGE_SECONDS
        return victim

    def end(self):
        """Ends an outage of the bucket."""
        self._outage_file.unlink(missing_ok=True)
        self._outage_ends = None
