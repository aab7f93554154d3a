"""Our own side of every row: its name, and the line that `crates/regard/examples/peer.rs` takes for it. Needs no torch."""

from dataclasses import dataclass

# preset, pictures of a batch
VITS = [(f"vit-{size}-patch16-224", batch) for size in ("tiny", "small", "base") for batch in (1, 8)]
CLASSIFIERS = [*VITS, ("deit-tiny-distilled", 1), ("deit-tiny-distilled", 8), ("resnet-50", 1), ("resnet-50", 8)]
WINDOWED = [("san10-pairwise", 4), ("san10-patchwise", 4), ("sasa-resnet26", 4)]
# preset, rows and columns of the picture
DETECTORS = [
    ("detr-r50", [800, 1066]),
    ("retinanet-resnet50-fpn", [640, 640]),
    ("faster-rcnn-resnet50-fpn", [640, 640]),
]
# model of video, clips of a batch
VIDEOS = [("timesformer-base", 1), ("i3d-50-nl5", 1)]
# eight bits against our own f32
INT8 = [row for row in VITS if "tiny" not in row[0]]
TRAINED = [
    ("vit-tiny-patch16-224", 16),
    ("vit-nano", 128),
    ("san-nano-pairwise", 64),
    ("san-nano-patchwise", 64),
    ("sasa-nano", 64),
]
# operator, its sizes as `peer.rs` takes them, in words
OPERATORS = [
    ("dot-product", [8, 3, 197, 64], "dot-product attention, 8x3 heads, 197 tokens of 64"),
    ("dot-product", [1, 3, 1024, 64], "dot-product attention, 1x3 heads, 1024 tokens of 64"),
    ("dot-product", [1, 1, 4096, 64], "dot-product attention, 1x1 head, 4096 tokens of 64"),
    ("local", [56, 64, 8, 7], "local attention, 56x56x64, k=7, 8 heads"),
    ("pairwise", [56, 64, 7], "pairwise attention, 56x56x64, k=7"),
    ("patchwise", [56, 64, 7], "patchwise attention, 56x56x64, k=7"),
]
# parts of layers, which `cargo bench -p regard` measures against Burn
PARTS = [
    ("softmax", [1576, 197], "softmax, 1576x197"),
    ("layer-norm", [1576, 192], "layer norm, 1576x192"),
    ("bias-gelu", [1576, 768], "bias + GELU, 1576x768"),
]
PASSES = {"forward": "forward", "backward": "forward+backward"}
PICTURES = 32


@dataclass(frozen=True)
class Ours:
    section: str
    name: str
    # a line for `peer.rs`
    work: str


def inference(preset, batch):
    return Ours("Inference", f"inference {preset} x{batch}", f"prepared {preset} {batch}")


def by_layers(preset, batch):
    return Ours("Inference by layers", f"by layers {preset} x{batch}", f"model {preset} {batch}")


def detection(preset, size):
    return Ours("Detection", f"detection {preset} {size[0]}x{size[1]}", f"detect {preset} {size[0]} {size[1]}")


def video(preset, batch):
    return Ours("Video", f"inference {preset} x{batch}", f"clips {preset} {batch}")


def int8(preset, batch):
    return Ours("Inference in int8", f"int8 {preset} x{batch}", f"int8 {preset} {batch}")


def training(preset, batch):
    return Ours("Training step", f"training step {preset} x{batch}", f"train {preset} {batch}")


def operator(name, sizes, words, direction):
    work = " ".join([direction, name, *map(str, sizes)])
    return Ours("Single operators", f"{words}, {PASSES[direction]}", work)


def pictures(folder, together):
    words, work = ("on all threads", "pictures-together") if together else ("one by one", "pictures")
    return Ours("Picture pipeline", f"{PICTURES} pictures, {words}", f"{work} {folder} {PICTURES}")


def every_row(photos=None):
    """Those of the picture pipeline need a folder of photos."""
    return [
        *(inference(*row) for row in [*CLASSIFIERS, *WINDOWED]),
        *(by_layers(*row) for row in CLASSIFIERS),
        *(detection(*row) for row in DETECTORS),
        *(int8(*row) for row in INT8),
        *(training(*row) for row in TRAINED),
        *(operator(*row, direction) for row in [*OPERATORS, *PARTS] for direction in PASSES),
        *(pictures(photos, together) for together in (False, True) if photos),
    ]
