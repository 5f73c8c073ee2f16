"""What is said at the end: lines, a plot and a page."""

import html

WINDOW = 10


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def running_mean(values, window=WINDOW):
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means


def lines(result):
    """The end of the demo, for people."""
    before, after, games = result["before"], result["after"], result["games"]
    # Of the difference of two shares of so many games each.
    error = (sum(p * (1 - p) for p in (before["solved"], after["solved"])) / games) ** 0.5
    yield (
        f"reward: {before['reward']:.3f} before, {after['reward']:.3f} after; solved: {before['solved']:.1%} before, "
        f"{after['solved']:.1%} after ({(after['solved'] - before['solved']) / max(error, 1e-9):.1f} standard errors, "
        f"the same {games} games each time)"
    )
    steps = [step for step in result["steps"] if step["deltas"]]
    versions = sum(step["deltas"] for step in steps)
    sent, full = sum(step["bytes"] for step in steps), result["model_bytes"] * versions
    changed = sum(step["changed"] * step["deltas"] for step in steps) / max(1, versions)
    yield (
        f"bytes: {sent:,} in {versions} versions, {sent / max(1, full):.2%} of the {full:,} that sending the model "
        f"each time takes; {changed:.2%} of the weights changed in a step"
    )
    publish = [step["publish_s"] for step in result["steps"]]
    yield f"trainer held by publishing: median {1e3 * quantile(publish, 0.5):.1f} ms, most {1e3 * max(publish):.1f} ms"
    for name, pauses in result["pauses"].items():
        if pauses:
            yield (
                f"{name}: {len(pauses)} updates, which held it for {1e3 * quantile(pauses, 0.5):.1f} ms (median), "
                f"{1e3 * quantile(pauses, 0.9):.1f} ms (nine in ten), {1e3 * max(pauses):.1f} ms (most)"
            )
    staleness = [step["staleness"] for step in steps if step["staleness"] is not None]
    if staleness:
        yield f"rollouts were {sum(staleness) / len(staleness):.1f} versions old when they were learned from"
    for name, digest in result["digests"].items():
        yield f"digest of {name}: {digest}"
    for name, elements in result["compared"].items():
        yield f"{name} compared {elements:,} elements in its engine with them"
    yield f"all of it took {result['seconds']:.0f} s"
    yield "the digests are equal" if result["exact"] else "THE DIGESTS DIFFER"


def plot(result, path):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    steps = [step["step"] for step in result["steps"]]
    reward = [step["reward"] for step in result["steps"]]
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    top.plot(steps, reward, color="#bbbbbb", linewidth=1, label="each step")
    top.plot(steps, running_mean(reward), color="#1f6f8b", linewidth=2, label=f"mean of {WINDOW} steps")
    ends = [(min(steps), result["before"]["reward"]), (max(steps), result["after"]["reward"])]
    top.plot(*zip(*ends, strict=True), "o", color="#c8553d", label=f"evaluation, {result['games']} games")
    top.set_ylabel("reward")
    top.legend(loc="lower right")
    published = [step for step in result["steps"] if step["deltas"]]
    share = [100 * step["bytes"] / step["deltas"] / result["model_bytes"] for step in published]
    at = [step["step"] for step in published]
    bottom.plot(at, [100 * step["changed"] for step in published], color="#c8553d", label="weights changed")
    bottom.plot(at, share, color="#1f6f8b", label="bytes sent, of the full model")
    bottom.set_ylabel("%")
    bottom.set_ylim(bottom=0)
    bottom.set_xlabel("step")
    bottom.legend(loc="center right")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def page(result, picture):
    """A small page with the same."""
    said = "".join(f"<li>{html.escape(line)}</li>" for line in lines(result))
    image = f'<img src="{html.escape(picture)}" alt="reward and bytes over steps" width="800">' if picture else ""
    return (
        "<!doctype html><meta charset=utf-8><title>weightwire demo</title>"
        "<style>body{font:16px sans-serif;max-width:52em;margin:2em auto} li{overflow-wrap:anywhere}</style>"
        "<h1>A model learns Wordle through a bucket</h1>"
        f"<p>{html.escape(result['setting'])}</p>{image}<ul>{said}</ul>\n"
    )
