"""Runs every row of the benchmark round by round: ours, then each peer, so that a wandering clock cancels in the ratios.

A ratio is the peer's time over ours in the same round: above 1, we are faster.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time

import numpy
import onnxruntime
import openvino
import timm
import torch

# our preset, timm's name, pictures of a batch
INFERENCE = [
    ("vit-tiny-patch16-224", "vit_tiny_patch16_224", 1),
    ("vit-tiny-patch16-224", "vit_tiny_patch16_224", 8),
    ("deit-tiny-distilled", "deit_tiny_distilled_patch16_224", 8),
    ("vit-small-patch16-224", "vit_small_patch16_224", 1),
    ("vit-small-patch16-224", "vit_small_patch16_224", 8),
    ("vit-base-patch16-224", "vit_base_patch16_224", 1),
    ("vit-base-patch16-224", "vit_base_patch16_224", 8),
    ("resnet-50", "resnet50", 1),
    ("resnet-50", "resnet50", 8),
]
# forward and backward
TRAINING = [
    ("vit-tiny-patch16-224", "vit_tiny_patch16_224", 16),
]
QUICK = {"vit-tiny-patch16-224", "deit-tiny-distilled"}


class Ours:
    """The Rust side, a process that answers with seconds."""

    def __init__(self, path, threads):
        environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
        self.process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def seconds(self, kind, model, batch):
        self.process.stdin.write(f"{kind} {model} {batch}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def timed(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def inference_peers(name, batch, threads):
    model = timm.create_model(name, pretrained=False).eval()
    images = torch.randn(batch, *model.default_cfg["input_size"])
    pixels = images.numpy().astype(numpy.float32)

    def in_torch():
        with torch.inference_mode():
            model(images)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        torch.onnx.export(model, images, path, dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    feed = {session.get_inputs()[0].name: pixels}
    return {
        "torch": in_torch,
        "onnxruntime": lambda: session.run(None, feed),
        "openvino": lambda: request.infer([pixels]),
    }


def training_peers(name, batch, _threads):
    model = timm.create_model(name, pretrained=False, num_classes=1000).train()
    images = torch.randn(batch, *model.default_cfg["input_size"])
    classes = torch.arange(batch) % 10

    def step():
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(images), classes).backward()

    return {"torch": step}


def measured(ours, kind, row, peers, rounds):
    model, _, batch = row
    for run in peers.values():
        run()
    kinds = [kind] if kind == "train" else [kind, "model"]
    for each in kinds:
        ours.seconds(each, model, batch)
    own, ratios = [], {name: [] for name in [*peers, *kinds[1:]]}
    for _ in range(rounds):
        own.append(ours.seconds(kind, model, batch))
        for name, run in peers.items():
            ratios[name].append(timed(run) / own[-1])
        for each in kinds[1:]:
            ratios[each].append(ours.seconds(each, model, batch) / own[-1])
    spread = lambda values: statistics.quantiles(values, n=4)
    return {
        "row": f"{kind} {model} x{batch}",
        "milliseconds": 1000 * statistics.median(own),
        "ratios": {name: {"median": spread(values)[1], "quartiles": spread(values)[::2]} for name, values in ratios.items()},
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    threads = int(os.environ.get("THREADS", len(os.sched_getaffinity(0))))
    rounds = arguments.rounds or (7 if arguments.quick else 20)
    torch.set_num_threads(threads)
    ours = Ours(arguments.peer, threads)
    rows = [("prepared", row, inference_peers) for row in INFERENCE] + [("train", row, training_peers) for row in TRAINING]
    names = ["torch", "onnxruntime", "openvino", "model"]
    print("| row | ours, ms | " + " | ".join(names) + " |")
    print("|---|---|" + "---|" * len(names))
    results = []
    for kind, row, peers in rows:
        if arguments.quick and row[0] not in QUICK:
            continue
        result = measured(ours, kind, row, peers(row[1], row[2], threads), rounds)
        results.append(result)
        cell = lambda ratio: f"{ratio['median']:.2f} ({ratio['quartiles'][0]:.2f}-{ratio['quartiles'][1]:.2f})"
        cells = [cell(result["ratios"][name]) if name in result["ratios"] else "" for name in names]
        print(f"| {result['row']} | {result['milliseconds']:.1f} | " + " | ".join(cells) + " |", flush=True)
    versions = {module.__name__: module.__version__ for module in [torch, timm, onnxruntime, openvino]}
    machine = {"processor": platform.processor() or platform.machine(), "threads": threads, "versions": versions}
    with open("bench/results.json", "w") as file:
        json.dump({"machine": machine, "rounds": rounds, "results": results}, file, indent=1)


main()
