"""Measures every row round by round: ours, then each peer, so that changes of the clock frequency cancel in the ratios.

A ratio is the peer's time over ours in the same round: above 1, we are faster. Called by `bench/run`.
"""

import argparse
import fnmatch
import json
import os
import platform
import statistics
import sys
import tempfile
import time

import torch

import check
import figures
from contestants import Command, Process
from rounds import cell, repeats_for, spread
from rows import ROWS, Setting

RESULTS = "bench/results.json"


def say(text):
    print(text, file=sys.stderr, flush=True)


def measured(row, contestants, arguments):
    """Times of every round, and what follows from them."""
    least = 0.05 if arguments.quick else 0.1
    whole = any(isinstance(each, Command) for each in contestants.values())
    # the first run allocates and packs what later runs reuse
    warm = {name: min(each.seconds(1) for _ in range(1 if whole else 2)) for name, each in contestants.items()}
    repeats = {name: 1 if whole else repeats_for(seconds, least) for name, seconds in warm.items()}
    if whole:
        for each in contestants.values():
            each.spent.clear()
    one_round = sum(seconds * (repeats[name] + (repeats[name] > 1)) for name, seconds in warm.items())
    most, patience = (5, 15) if arguments.quick else (20, 120)
    rounds = arguments.rounds or max(3 if arguments.quick else 7, min(most, round(patience / one_round)))
    say(f"{row.name}: {rounds} rounds of {one_round:.1f} s")
    times = {name: [] for name in contestants}
    for index in range(rounds):
        # alternate the order, so that no contestant always runs after the same one
        order = list(contestants) if index % 2 == 0 else list(reversed(contestants))
        for name in order:
            times[name].append(contestants[name].seconds(repeats[name]))
    result = summary(row, row.name, times)
    peaks = {name: each.peak() for name, each in contestants.items()}
    result["peak_megabytes"] = {name: peak / 1e6 for name, peak in peaks.items() if peak is not None}
    results = [result]
    if whole:
        work = {name: [usage["work"] for usage in each.spent] for name, each in contestants.items()}
        results.append(summary(row, f"{row.name}: processor time", work))
    return results


def summary(row, name, times):
    peers = [name for name in times if name != "ours"]
    ratios = {peer: [theirs / ours for theirs, ours in zip(times[peer], times["ours"])] for peer in peers}
    return {
        "section": row.section,
        "row": name,
        "rounds": len(times["ours"]),
        "milliseconds": {name: 1000 * statistics.median(values) for name, values in times.items()},
        "ratios": {peer: spread(values) for peer, values in ratios.items()},
        "measured": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def tables(results):
    """A Markdown table a section; peers are columns."""
    for section in dict.fromkeys(result["section"] for result in results):
        chosen = [result for result in results if result["section"] == section]
        peers = list(dict.fromkeys(peer for result in chosen for peer in result["ratios"]))
        memory = list(dict.fromkeys(name for result in chosen for name in result.get("peak_megabytes", {})))
        yield f"\n### {section}\n"
        head = ["row", "ours, ms", *peers, *(f"{name}, MB" for name in memory)]
        yield f"| {' | '.join(head)} |"
        yield "|---|" + "---:|" * (len(head) - 1)
        for result in chosen:
            cells = [cell(result["ratios"][peer]) if peer in result["ratios"] else "" for peer in peers]
            peaks = result.get("peak_megabytes", {})
            megabytes = [f"{peaks[name]:.1f}" if name in peaks else "" for name in memory]
            own = f"{result['milliseconds']['ours']:.2f}"
            yield f"| {' | '.join([result['row'], own, *cells, *megabytes])} |"


def machine(threads):
    processor = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                processor = line.split(":", 1)[1].strip()
                break
    import onnxruntime, openvino, PIL, timm, torchvision

    modules = [torch, torchvision, timm, onnxruntime, openvino, PIL]
    return {
        "processor": processor,
        "threads": threads,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": platform.platform(),
        "versions": {module.__name__: module.__version__ for module in modules},
    }


def earlier(this):
    """Rows that were measured before on the same machine."""
    if not os.path.exists(RESULTS):
        return {}
    with open(RESULTS) as file:
        stored = json.load(file)
    same = stored.get("machine") == this
    return {result["row"]: result for result in stored["results"]} if same else {}


def main():
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few rows, 5 rounds each")
    parser.add_argument("--only", metavar="PATTERN", help="rows whose name contains this; * and ? as in a shell")
    parser.add_argument("--rounds", type=int, help="rounds per row; by default 7 to 20, as many as fit in two minutes")
    parser.add_argument("--photos", metavar="FOLDER", default=os.environ.get("PHOTOS"), help="JPEG files (or $PHOTOS); by default a generated one")
    parser.add_argument("--weights", metavar="FILE", default=os.environ.get("WEIGHTS"), help="DeiT-Tiny as safetensors with timm's names (or $WEIGHTS), for the cold start; random otherwise")
    parser.add_argument("--figures", metavar="FOLDER", default="bench/figures")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--check", action="store_true", help="compare results instead of times")
    parser.add_argument("--fresh", action="store_true", help="forget rows of earlier runs")
    arguments = parser.parse_args()
    pattern = f"*{arguments.only or ''}*".lower()
    chosen = [row for row in ROWS if fnmatch.fnmatch(row.name.lower(), pattern) and (row.quick or not arguments.quick)]
    if not chosen:
        parser.error(f"no row is like `{arguments.only}`; --list names them")
    if arguments.list:
        print("\n".join(row.name for row in chosen))
        return
    threads = int(os.environ.get("THREADS", len(os.sched_getaffinity(0))))
    torch.set_num_threads(threads)
    ours = Process(os.environ["PEER"], threads)
    rivals = Process(os.environ["RIVALS"], threads) if os.environ.get("RIVALS") else None
    with tempfile.TemporaryDirectory() as folder:
        regard = os.path.abspath(os.environ["REGARD"])
        setting = Setting(ours, rivals, regard, threads, folder, arguments.photos, arguments.weights)
        if arguments.check:
            sys.exit(0 if check.all_agree(chosen, setting) else 1)
        this = machine(threads)
        known = {} if arguments.fresh else earlier(this)
        results = []
        for row in chosen:
            say(f"{row.name}: setting up")
            contestants = row.make(setting)
            results += measured(row, contestants, arguments)
            for each in contestants.values():
                each.forget()
            known |= {result["row"]: result for result in results}
            order = {row.name: index for index, row in enumerate(ROWS)}
            stored = sorted(known.values(), key=lambda result: order.get(result["row"].split(":")[0], len(order)))
            with open(RESULTS, "w") as file:
                json.dump({"machine": this, "results": stored}, file, indent=1)
    print(f"{this['processor']}, {threads} threads, {this['instructions']}; " + ", ".join(f"{name} {version}" for name, version in this["versions"].items()))
    print("\nA number is the peer's time over ours in the same round, median and quartiles: above 1 we are faster.")
    print("\n".join(tables(results)))
    figures.ratios(stored, arguments.figures)
    say(f"\nwrote {RESULTS} and {arguments.figures}/ratios.svg")


main()
