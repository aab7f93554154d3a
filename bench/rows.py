"""The rows: each names its contestants, ours first."""

import os
from dataclasses import dataclass
from typing import Callable

import numpy
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import ours
import peers
from contestants import Command, Here, Launcher, Work
from ours import CLASSIFIERS, DETECTORS, INT8, OPERATORS, PASSES, PICTURES, TRAINED, VIDEOS, VITS, WINDOWED

QUICK = {
    "inference vit-tiny-patch16-224 x1",
    "inference vit-tiny-patch16-224 x8",
    "training step vit-nano x128",
    "training step sasa-nano x64",
    "dot-product attention, 8x3 heads, 197 tokens of 64, forward",
    "local attention, 56x56x64, k=7, 8 heads, forward",
    "local attention, 56x56x64, k=7, 8 heads, forward+backward",
    f"{PICTURES} pictures, one by one",
    "cold start, one photo",
}


@dataclass
class Row:
    section: str
    name: str
    make: Callable
    # what `bench/run --check` compares, as a line for `peer.rs`
    work: str = ""

    @property
    def quick(self):
        return self.name in QUICK


@dataclass
class Setting:
    """Shared by all rows."""

    ours: object
    rivals: object
    regard: str
    threads: int
    folder: str
    photos: str | None
    weights: str | None

    def photo_folder(self):
        """Photos, or one picture that looks like one to a decoder."""
        if self.photos is None:
            self.photos = os.path.join(self.folder, "photos")
            os.makedirs(self.photos)
            random = numpy.random.default_rng(1)
            coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=numpy.uint8))
            smooth = coarse.resize((500, 375), Image.Resampling.BICUBIC)
            noisy = numpy.asarray(smooth) + random.normal(0, 8, (375, 500, 3))
            Image.fromarray(noisy.clip(0, 255).astype(numpy.uint8)).save(os.path.join(self.photos, "made.jpg"), quality=90)
        return self.photos


def inference(preset, batch):
    own = ours.inference(preset, batch)

    def make(setting):
        model, images = peers.create(preset), torch.randn(batch, *peers.image_shape(preset))
        contestants = {"ours": Work(setting.ours, own.work, counts_memory=True)}
        contestants["torch"] = Here(peers.in_torch(model, images), uses_torch=True)
        if (preset, batch) not in WINDOWED:
            runtimes = peers.in_runtimes(model, images, setting.threads)
            contestants |= {name: Here(run) for name, run in runtimes.items()}
        if (preset, batch) in VITS and setting.rivals:
            for rival in ("burn", "candle"):
                contestants[rival] = Work(setting.rivals, f"{rival} {preset} {batch}")
        if preset in peers.TIMM:
            contestants["ours by layers"] = Work(setting.ours, ours.by_layers(preset, batch).work, counts_memory=True)
        return contestants

    return Row(own.section, own.name, make, own.work)


def detection(preset, size):
    own = ours.detection(preset, size)

    def make(setting):
        model, images = peers.detector(preset, size), torch.randn(1, 3, *size)
        return {
            "ours": Work(setting.ours, own.work, counts_memory=True),
            "torch": Here(peers.in_detector(model, images), uses_torch=True),
            "torch.compile": Here(peers.in_detector(model, images, compiled=True), uses_torch=True),
        }

    return Row(own.section, own.name, make)


def video(preset, batch):
    own = ours.video(preset, batch)

    def make(setting):
        model, clips = peers.video(preset), torch.randn(batch, *peers.clip_shape(preset))
        return {
            "ours": Work(setting.ours, own.work, counts_memory=True),
            "torch": Here(peers.in_torch(model, clips), uses_torch=True),
            "torch.compile": Here(peers.in_torch(torch.compile(model), clips), uses_torch=True),
        }

    return Row(own.section, own.name, make)


def int8(preset, batch):
    own = ours.int8(preset, batch)

    def make(setting):
        return {
            "ours": Work(setting.ours, own.work, counts_memory=True),
            "ours in f32": Work(setting.ours, ours.inference(preset, batch).work, counts_memory=True),
        }

    return Row(own.section, own.name, make)


def training(preset, batch):
    own = ours.training(preset, batch)

    def make(setting):
        images = torch.randn(batch, *peers.image_shape(preset))
        contestants = {"ours": Work(setting.ours, own.work, counts_memory=True)}
        contestants["torch"] = Here(peers.step(peers.create(preset), images), uses_torch=True)
        if preset.startswith("vit") and setting.rivals:
            contestants["burn"] = Work(setting.rivals, f"burn-train {preset} {batch}")
        return contestants

    return Row(own.section, own.name, make, own.work)


def operator(name, sizes, words, direction):
    own = ours.operator(name, sizes, words, direction)

    def make(setting):
        contestants = {"ours": Work(setting.ours, own.work, counts_memory=True)}
        contestants["torch"] = Here(getattr(peers, direction)(name, sizes), uses_torch=True)
        if name == "dot-product":
            fused = peers.fused_attention(sizes, direction == "backward")
            contestants["torch's own kernel"] = Here(fused, uses_torch=True)
        return contestants

    return Row(own.section, own.name, make, own.work)


def pictures(together):
    own = ours.pictures("", together)

    def make(setting):
        folder, threads = setting.photo_folder(), setting.threads if together else 1
        return {
            "ours": Work(setting.ours, ours.pictures(folder, together).work, counts_memory=True),
            "PIL": Here(peers.pictures(folder, PICTURES, threads)),
        }

    return Row(own.section, own.name, make, "" if together else "pictures")


def cold_start():
    preset = "deit-tiny"

    def make(setting):
        folder = setting.photo_folder()
        photo = os.path.join(folder, sorted(os.listdir(folder))[0])
        model = peers.create(preset)
        weights = setting.weights
        if weights is None:
            weights = os.path.join(setting.folder, "deit_tiny.safetensors")
            save_file(model.state_dict(), weights)
        else:
            model.load_state_dict(load_file(weights))
        exported = os.path.join(setting.folder, "deit_tiny.onnx")
        peers.export(model, torch.randn(1, 3, 224, 224), exported)
        count = str(setting.threads)
        environment = dict(os.environ, RAYON_NUM_THREADS=count, OMP_NUM_THREADS=count, THREADS=count)
        python = os.path.abspath("bench/venv/bin/python")
        launcher = Launcher()
        commands = {
            "ours": [setting.regard, "predict", "--model", preset, "--weights", weights, photo],
            "timm": [python, "bench/cold_timm.py", peers.TIMM[preset], weights, photo],
            "onnxruntime": [python, "bench/cold_onnx.py", exported, photo],
        }
        return {name: Command(launcher, command, environment) for name, command in commands.items()}

    return Row("Cold start", "cold start, one photo", make)


ROWS = [
    *(inference(*row) for row in [*CLASSIFIERS, *WINDOWED]),
    *(detection(*row) for row in DETECTORS),
    *(video(*row) for row in VIDEOS),
    *(int8(*row) for row in INT8),
    *(training(*row) for row in TRAINED),
    *(operator(*row, direction) for row in OPERATORS for direction in PASSES),
    pictures(together=False),
    pictures(together=True),
    cold_start(),
]
