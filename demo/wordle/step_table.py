"""The table of steps that the demo prints while the model learns."""

import sys

SERVERS = ("server a", "server b")
COLUMNS = (
    f"{'step':>5}  {'reward':>6}  {'changed':>8}  {'bytes':>9}  {'of model':>8}  {'held for':>8}"
    f"  {'a: version, lag, pause':>24}  {'b: version, lag, pause':>24}"
)
ROWS = 16  # on a terminal


class StepTable:
    """Redraws the last steps on a terminal; prints each step once into a pipe."""

    def __init__(self):
        self.steps = []
        self.model_bytes = 0
        self.status = {name: {} for name in SERVERS}
        self.pauses = {name: {} for name in SERVERS}  # by version
        self._drawn = 0
        self._live = sys.stdout.isatty()

    def set_status(self, name, status):
        self.status[name] = status
        update = status.get("last_update")
        if update:
            self.pauses[name][update["version"]] = update["commit_seconds"]

    def add_step(self, event):
        step = {
            "step": event["step"],
            "reward": event["reward"],
            "version": event["weightwire/version"],
            "bytes": event["weightwire/delta_bytes"] or 0,
            "deltas": event["weightwire/deltas"] or 0,  # those that were still being read come with the next step
            "changed": event["weightwire/changed_ratio"] or 0.0,
            "publish_s": event["weightwire/blocked_seconds"] or 0.0,
            "staleness": event["sample/staleness_mean"],
        }
        step["servers"] = "  ".join(self._server(name) for name in SERVERS)
        self.steps.append(step)
        self.show()

    def _server(self, name):
        status = self.status[name]
        if not status:
            return f"{'does not answer':>24}"
        pause = status.get("last_update") or {}
        milliseconds = f"{1e3 * pause['commit_seconds']:.1f} ms" if pause else "-"
        return f"{status['version']:>10} {status.get('lag_versions') or 0:>3} {milliseconds:>9}"

    def print_line(self, text):
        """Prints a line between the steps."""
        if self._live and self._drawn:
            print(f"\x1b[{self._drawn}F\x1b[J", end="")
            self._drawn = 0
        print(f"-- {text}", flush=True)

    def _line(self, step):
        cost = f"{'-':>8}  {'-':>9}  {'-':>8}"
        if step["deltas"]:
            size = step["bytes"] // step["deltas"]
            cost = f"{100 * step['changed']:>6.2f} %  {size:>9,}  {100 * size / max(1, self.model_bytes):>6.2f} %"
        held = f"{1e3 * step['publish_s']:>5.0f} ms"
        return f"{step['step']:>5}  {step['reward']:>6.3f}  {cost}  {held}  {step['servers']}"

    def show(self):
        if not self._live:
            if len(self.steps) == 1:
                print(COLUMNS)
            print(self._line(self.steps[-1]), flush=True)
            return
        rows = [COLUMNS, *(self._line(step) for step in self.steps[-ROWS:])]
        up = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        print(up + "\n".join(rows), flush=True)
        self._drawn = len(rows)
