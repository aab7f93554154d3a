"""How costs grow, and how far they are from what the machine can do. Called by `bench/growth`.

Every point is the median of rounds, in which all contestants are measured in turn.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch

import figures
import peers
from contestants import Here, Process, Work
from rounds import repeats_for

TOKENS = [256, 512, 1024, 2048, 4096, 8192]
SIDES = [14, 28, 56, 112, 224]
WINDOWS = [3, 5, 7, 9, 11]
BATCHES = [1, 2, 4, 8, 16, 32]
LAYER_TOKENS = [64, 128, 256, 512, 1024, 2048, 4096]
LAYER_WIDTH = 256
# cost of a layer, sequential steps, longest path between two tokens
LAYERS = {
    "recurrent": ["n d^2", "n", "n"],
    "convolution": ["k n d^2", "1", "log_k n"],
    "attention": ["n^2 d", "1", "1"],
}
WRITTEN = [10, 20, 40, 80]
WIDTH = 64
VIT = "vit-tiny-patch16-224"
# multiply-adds of a picture, twice: what `regard models show vit-tiny-patch16-224` counts
VIT_OPERATIONS = 2 * 1.26e9


def say(text):
    print(text, file=sys.stderr, flush=True)


class Limits:
    """The measured limits of this machine with a number of threads: the best of several tries."""

    def __init__(self, threads):
        torch.set_num_threads(threads)
        self.threads = threads
        self.operations = max(self.product(side) for side in (512, 1024, 2048) for _ in range(3))
        self.bytes = max(self.sweep() for _ in range(5))
        say(f"limits with {threads} threads: {self.operations / 1e9:.0f} GFLOP/s, {self.bytes / 1e9:.1f} GB/s")

    @staticmethod
    def product(side):
        """Operations of a matrix product in a second."""
        left, right, out = (torch.randn(side, side) for _ in range(3))
        seconds = Here(lambda: torch.mm(left, right, out=out)).seconds(max(2, 2048**3 // side**3))
        return 2 * side**3 / seconds

    @staticmethod
    def sweep():
        """Bytes read and written in a second by a sum of arrays that no cache holds."""
        left, right, out = (torch.ones(1 << 25) for _ in range(3))
        seconds = Here(lambda: torch.add(left, right, out=out)).seconds(3)
        return 3 * 4 * len(out) / seconds

    def seconds(self, operations, moved):
        """The minimum time for a number of operations and bytes."""
        return max(operations / self.operations, moved / self.bytes)

    def as_dict(self):
        return {"threads": self.threads, "gflops": self.operations / 1e9, "gigabytes_per_second": self.bytes / 1e9}


def point(contestants, rounds, memory=True):
    """Median seconds and peak bytes of each."""
    warm = {name: min(each.seconds(1), each.seconds(1)) for name, each in contestants.items()}
    times = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, each in contestants.items():
            times[name].append(each.seconds(repeats_for(warm[name], 0.05)))
    results = {name: {"seconds": statistics.median(values)} for name, values in times.items()}
    for name, each in contestants.items():
        peak = each.peak() if memory else None
        if peak is not None:
            results[name]["bytes"] = peak
        each.forget()
    return results


def series(xs, points, field, factor):
    names = list(dict.fromkeys(name for each in points for name in each))
    at = lambda name: [(x, each[name][field] * factor) for x, each in zip(xs, points) if field in each.get(name, {})]
    return [(name, *map(list, zip(*at(name)))) for name in names if at(name)]


def tokens(ours, threads, rounds, limits, folder):
    """Dot-product attention over the number of tokens, forward."""
    points = []
    for count in TOKENS:
        say(f"attention over {count} tokens")
        sizes = [1, 1, count, WIDTH]
        points.append(point({
            "ours": Work(ours, f"forward dot-product 1 1 {count} {WIDTH}", counts_memory=True),
            "torch": Here(peers.forward("dot-product", sizes), uses_torch=True),
            "torch's own kernel": Here(peers.fused_attention(sizes, False), uses_torch=True),
        }, rounds))
    least = [1e3 * limits.seconds(4 * count**2 * WIDTH, 16 * count * WIDTH) for count in TOKENS]
    result = [4e-6 * count * WIDTH for count in TOKENS]
    scores = [4e-6 * count**2 for count in TOKENS]
    figures.curves([
        {"title": "time", "x": "tokens", "y": "milliseconds", "base2": True, "lines": series(TOKENS, points, "seconds", 1e3), "limits": [("both products at the machine's peak", TOKENS, least)]},
        {"title": "peak memory beyond the inputs", "x": "tokens", "y": "megabytes", "base2": True, "lines": series(TOKENS, points, "bytes", 1e-6), "limits": [("the output (linear)", TOKENS, result), ("the scores (quadratic)", TOKENS, scores)], "style": {"the scores (quadratic)": ":"}},
    ], f"dot-product attention, one head of {WIDTH}, forward, {threads} threads", folder, "growth-tokens")
    return {"tokens": TOKENS, "points": points}


def local_point(ours, rounds, side, window):
    sizes = [side, WIDTH, 8, window]
    say(f"local attention, {side}x{side}, k={window}")
    return point({
        "ours": Work(ours, "forward local " + " ".join(map(str, sizes)), counts_memory=True),
        "torch": Here(peers.forward("local", sizes), uses_torch=True),
    }, rounds)


def local_least(limits, side, window):
    """Scores, scores of embeddings and sums of values; three maps in, one out."""
    pixels = side * side
    operations = pixels * WIDTH * (4 * window**2 + 2 * window)
    return 1e3 * limits.seconds(operations, 16 * pixels * WIDTH)


def local_panels(xs, points, label, least, output):
    return [
        {"title": "time", "x": label, "y": "milliseconds", "lines": series(xs, points, "seconds", 1e3), "limits": [("its sums at the machine's peak", xs, least)]},
        {"title": "peak memory beyond the inputs", "x": label, "y": "megabytes", "lines": series(xs, points, "bytes", 1e-6), "limits": [("the output", xs, output)]},
    ]


def windows(ours, threads, rounds, limits, folder):
    """Local attention over the side of its window."""
    points = [local_point(ours, rounds, 56, window) for window in WINDOWS]
    least = [local_least(limits, 56, window) for window in WINDOWS]
    output = [4e-6 * 56 * 56 * WIDTH] * len(WINDOWS)
    title = f"local attention, 56x56x{WIDTH}, 8 heads, forward, {threads} threads"
    figures.curves(local_panels(WINDOWS, points, "side of the window, k", least, output), title, folder, "growth-windows")
    return {"windows": WINDOWS, "points": points}


def sides(ours, threads, rounds, limits, folder):
    """Local attention over the number of pixels."""
    points = [local_point(ours, rounds, side, 7) for side in SIDES]
    pixels = [side * side for side in SIDES]
    least = [local_least(limits, side, 7) for side in SIDES]
    output = [4e-6 * count * WIDTH for count in pixels]
    title = f"local attention, {WIDTH} channels, 8 heads, k=7, forward, {threads} threads"
    figures.curves(local_panels(pixels, points, "pixels, H*W", least, output), title, folder, "growth-pixels")
    return {"pixels": pixels, "points": points}


def batches(ours, threads, rounds, limits, folder):
    """Pictures per second of ViT-Ti over the batch size, with one thread and with all."""
    results, panels = {"batches": BATCHES}, []
    for count in sorted({1, threads}):
        process = ours if count == threads else Process(os.environ["PEER"], count)
        most = limits if count == threads else Limits(count)
        torch.set_num_threads(count)
        points = []
        for batch in BATCHES:
            say(f"{VIT} x{batch}, {count} threads")
            model, images = peers.create(VIT), torch.randn(batch, 3, 224, 224)
            runs = {"torch": peers.in_torch(model, images)} | peers.in_runtimes(model, images, count)
            contestants = {"ours": Work(process, f"prepared {VIT} {batch}")}
            contestants |= {name: Here(run) for name, run in runs.items()}
            points.append(point(contestants, rounds, memory=False))
        results[f"{count} threads"] = points
        throughput = [{name: {"rate": batch / each["seconds"]} for name, each in at.items()} for batch, at in zip(BATCHES, points)]
        peak = [most.operations / VIT_OPERATIONS] * len(BATCHES)
        panels.append({"title": f"{count} thread{'s' if count > 1 else ''}", "x": "pictures of a batch", "y": "pictures per second", "base2": True, "log": False, "lines": series(BATCHES, throughput, "rate", 1), "limits": [("the machine's peak", BATCHES, peak)]})
    highest = 1.05 * max(y for panel in panels for _, _, ys in [*panel["lines"], *panel["limits"]] for y in ys)
    figures.curves(panels, "ViT-Ti at 224, inference", folder, "growth-batches", highest)
    torch.set_num_threads(threads)
    return results


def layers(ours, threads, rounds, limits, folder):
    """One layer of each kind over a sentence, forward: the comparison of the Transformer's paper, measured."""
    points = []
    for count in LAYER_TOKENS:
        say(f"layers over {count} tokens")
        points.append(point({kind: Work(ours, f"layer {kind} {count} {LAYER_WIDTH}", counts_memory=True) for kind in LAYERS}, rounds))
    figures.curves([
        {"title": "time", "x": "tokens", "y": "milliseconds", "base2": True, "lines": series(LAYER_TOKENS, points, "seconds", 1e3)},
        {"title": "peak memory beyond the inputs", "x": "tokens", "y": "megabytes", "base2": True, "lines": series(LAYER_TOKENS, points, "bytes", 1e-6)},
    ], f"one layer of width {LAYER_WIDTH}, forward, {threads} threads", folder, "growth-layers")
    print("| layer | operations | sequential steps | longest path | " + " | ".join(f"n={count}" for count in LAYER_TOKENS) + " |")
    print("|---|---|---|---|" + "---:|" * len(LAYER_TOKENS))
    for kind, words in LAYERS.items():
        cells = [f"{1e3 * at[kind]['seconds']:.2f} ms, {1e-6 * at[kind]['bytes']:.1f} MB" for at in points]
        print("| " + " | ".join([kind, *words, *cells]) + " |")
    return {"tokens": LAYER_TOKENS, "points": points}


def decoding(ours, threads, rounds, limits, folder):
    """A small Transformer that decodes a sentence token by token, with and without a key-value cache."""
    points = []
    for count in WRITTEN:
        say(f"writing {count} tokens")
        points.append(point({words: Work(ours, f"decode {how} {count}") for words, how in (("with key-value cache", "kept"), ("without", "again"))}, rounds, memory=False))
    figures.curves([
        {"title": "time of a sentence", "x": "tokens", "y": "milliseconds", "base2": True, "lines": series(WRITTEN, points, "seconds", 1e3)},
    ], f"transformer-small, greedy, {threads} threads", folder, "growth-decoding")
    print("| tokens | with key-value cache | without | ratio |\n|---:|---:|---:|---:|")
    for count, at in zip(WRITTEN, points):
        kept, again = (at[name]["seconds"] for name in ("with key-value cache", "without"))
        print(f"| {count} | {1e3 * kept:.1f} ms | {1e3 * again:.1f} ms | {again / kept:.2f} |")
    return {"tokens": WRITTEN, "points": points}


CURVES = {"tokens": tokens, "windows": windows, "pixels": sides, "batches": batches, "layers": layers, "decoding": decoding}


def main():
    parser = argparse.ArgumentParser(prog="bench/growth", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=CURVES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--figures", metavar="FOLDER", default="bench/figures")
    arguments = parser.parse_args()
    threads = int(os.environ.get("THREADS", len(os.sched_getaffinity(0))))
    limits = Limits(threads)
    ours = Process(os.environ["PEER"], threads)
    path = "bench/growth.json"
    results = {}
    if os.path.exists(path):
        with open(path) as file:
            results = json.load(file)
    results["limits"] = limits.as_dict()
    for name, draw in CURVES.items():
        if arguments.only in (None, name):
            start = time.time()
            results[name] = draw(ours, threads, arguments.rounds, limits, arguments.figures)
            say(f"{arguments.figures}/growth-{name}.svg after {time.time() - start:.0f} s")
            with open(path, "w") as file:
                json.dump(results, file, indent=1)
    say(f"wrote {path}")


main()
