"""The same work by the peers: PyTorch, ONNX Runtime, OpenVINO, PIL."""

import io
import os
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor

import onnxruntime
import openvino
import timm
import torch
from PIL import Image
from torch.nn import functional
from torchvision import transforms
from torchvision.models import detection
from transformers import DetrConfig, DetrForObjectDetection, TimesformerConfig, TimesformerForVideoClassification

import i3d
import windows

TIMM = {
    "vit-tiny-patch16-224": "vit_tiny_patch16_224",
    "vit-small-patch16-224": "vit_small_patch16_224",
    "vit-base-patch16-224": "vit_base_patch16_224",
    "deit-tiny": "deit_tiny_patch16_224",
    "deit-tiny-distilled": "deit_tiny_distilled_patch16_224",
    "resnet-50": "resnet50",
}


def create(preset):
    """The model of one of Regard's presets, with random weights."""
    if preset in TIMM:
        return timm.create_model(TIMM[preset], pretrained=False)
    if preset == "vit-nano":
        sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 128, "depth": 5, "num_heads": 4}
        return timm.models.VisionTransformer(**sizes, num_classes=10)
    return windows.create(preset)


def image_shape(preset):
    return (3, 32, 32) if "nano" in preset else (3, 224, 224)


# inference


def in_torch(model, images):
    model = model.eval()

    def run():
        with torch.inference_mode():
            return model(images)

    return run


def export(model, images, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), images, path, dynamo=False)


def in_runtimes(model, images, threads):
    """ONNX Runtime and OpenVINO, both of one exported file with fixed shapes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        export(model, images, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    pixels = images.numpy()
    feed = {session.get_inputs()[0].name: pixels}
    return {
        "onnxruntime": lambda: torch.from_numpy(session.run(None, feed)[0]),
        "openvino": lambda: torch.from_numpy(request.infer([pixels])[0]),
    }


# detection


def detector(preset, size):
    """A detector of torchvision, or DETR of Hugging Face, with random weights and without resizing."""
    if preset == "detr-r50":
        config = DetrConfig(use_pretrained_backbone=False, use_timm_backbone=True, backbone="resnet50")
        return DetrForObjectDetection(config).eval()
    make = {
        "retinanet-resnet50-fpn": detection.retinanet_resnet50_fpn,
        "faster-rcnn-resnet50-fpn": detection.fasterrcnn_resnet50_fpn,
    }[preset]
    return make(weights=None, weights_backbone=None, min_size=min(size), max_size=max(size)).eval()


def in_detector(model, images, compiled=False):
    """The boxes of one picture; torchvision's detectors take a list of pictures."""
    pictures = images if isinstance(model, DetrForObjectDetection) else list(images)
    return in_torch(torch.compile(model) if compiled else model, pictures)


# video


class Timesformer(torch.nn.Module):
    """Hugging Face's, for clips with channels before frames; gives logits."""

    def __init__(self):
        super().__init__()
        config = TimesformerConfig(num_frames=8, num_labels=400, attention_type="divided_space_time")
        self.model = TimesformerForVideoClassification(config)

    def forward(self, clips):
        return self.model(clips.transpose(1, 2)).logits


def video(preset):
    return {"timesformer-base": Timesformer, "i3d-50-nl5": i3d.I3d}[preset]().eval()


def clip_shape(preset):
    return 3, 8, 224, 224


# training


def step(model, images, rate=1e-4):
    """Forward, backward and AdamW, without decay for parameters with one axis; returns the loss."""
    model = model.train()
    classes = torch.arange(len(images)) % 10
    parameters = list(model.parameters())
    groups = [
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": 0.05},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=rate, fused=True)

    def run():
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(images), classes)
        loss.backward()
        optimiser.step()
        return loss.item()

    return run


# single operators


def operator_inputs(name, sizes):
    """Random inputs, by name."""
    if name == "dot-product":
        return {each: torch.randn(sizes) for each in ("query", "key", "value")}
    if name == "local":
        side, channels, heads, window = sizes
        maps = {each: torch.randn(1, channels, side, side) for each in ("query", "key", "value")}
        return maps | {each: torch.randn(heads, channels // heads // 2, window) for each in ("rows", "columns")}
    side, channels, _ = sizes
    related = {each: torch.randn(1, channels // 4, side, side) for each in ("phi", "psi")}
    return related | {"beta": torch.randn(1, channels, side, side)}


def operator(name, sizes, inputs, gamma=None):
    """The formula of an operator, with all its intermediate tensors."""
    if name == "dot-product":
        return lambda: windows.dot_product(**inputs)
    if name == "local":
        side, _, heads, window = sizes
        outside = windows.outside_of(side, side, window)
        return lambda: windows.local(**inputs, heads=heads, outside=outside)
    side, _, window = sizes
    gamma = gamma or gamma_of(name, sizes)
    if name == "pairwise":
        place = windows.coordinates(side, side)
        return lambda: windows.pairwise(**inputs, place=place, gamma=gamma, window=window)
    return lambda: windows.patchwise(**inputs, gamma=gamma, window=window)


def gamma_of(name, sizes):
    _, channels, window = sizes
    related, weights = channels // 4, channels // 8
    if name == "pairwise":
        return windows.Gamma(related + 2, related, weights)
    return windows.Gamma(related * (window**2 + 1), weights, weights * window**2)


def forward(name, sizes):
    inputs, gamma = operator_inputs(name, sizes), None
    if name in ("pairwise", "patchwise"):
        gamma = gamma_of(name, sizes).eval()
    formula = operator(name, sizes, inputs, gamma)

    def run():
        with torch.inference_mode():
            return formula()

    return run


def backward(name, sizes):
    """Forward and backward, to all inputs."""
    inputs = {each: tensor.requires_grad_() for each, tensor in operator_inputs(name, sizes).items()}
    return backward_of(operator(name, sizes, inputs), inputs)


def backward_of(formula, inputs):
    def run():
        formula().sum().backward()
        for tensor in inputs.values():
            tensor.grad = None

    return run


def fused_attention(sizes, with_backward):
    """torch's own kernel for dot-product attention."""
    inputs = [torch.randn(sizes, requires_grad=with_backward) for _ in range(3)]

    def formula():
        return functional.scaled_dot_product_attention(*inputs)

    if with_backward:
        return backward_of(formula, dict(enumerate(inputs)))

    def run():
        with torch.inference_mode():
            return formula()

    return run


# pictures


def pictures(folder, count, threads):
    """JPEG bytes to normalised pixels by PIL and torchvision, one by one or on threads (PIL lets go of Python's lock)."""
    names = sorted(os.listdir(folder))
    files = []
    for index in range(count):
        with open(os.path.join(folder, names[index % len(names)]), "rb") as file:
            files.append(file.read())
    transform = transforms.Compose([
        transforms.Resize(256, transforms.InterpolationMode.BICUBIC),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])

    def pixels(file):
        return transform(Image.open(io.BytesIO(file)).convert("RGB"))

    def one_by_one():
        # with more, torch spends several times the work of PIL on waking threads for small tensors
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return [pixels(file) for file in files]
        finally:
            torch.set_num_threads(before)

    if threads == 1:
        return one_by_one
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(pixels, files))
