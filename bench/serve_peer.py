"""A FastAPI server with ONNX Runtime, as one writes it: a picture in, the five best classes out.

    python bench/serve_peer.py export WEIGHTS MODEL.onnx
    python bench/serve_peer.py serve MODEL.onnx PORT PROCESSES

ONNX Runtime's threads are shared out over the processes. Requests run in FastAPI's pool of threads, where both PIL and
ONNX Runtime let go of the interpreter's lock.
"""

import io
import os
import sys


def export(weights, path):
    import warnings

    import safetensors.torch
    import timm
    import torch

    model = timm.create_model("deit_tiny_patch16_224", pretrained=False).eval()
    model.load_state_dict(safetensors.torch.load_file(weights))
    axes = {"input": {0: "batch"}, "logits": {0: "batch"}}
    images = torch.zeros(1, 3, 224, 224)
    names = {"input_names": ["input"], "output_names": ["logits"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, images, path, dynamic_axes=axes, dynamo=False, **names)


def create():
    """The application; uvicorn calls this in each process."""
    import numpy
    import onnxruntime
    from fastapi import Body, FastAPI
    from PIL import Image

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["PEER_THREADS"])
    session = onnxruntime.InferenceSession(os.environ["PEER_MODEL"], options, providers=["CPUExecutionProvider"])
    mean = numpy.array([0.485, 0.456, 0.406], dtype=numpy.float32)
    deviation = numpy.array([0.229, 0.224, 0.225], dtype=numpy.float32)
    app = FastAPI()

    def prepare(data):
        """As Regard does for DeiT: the short side to 256, bicubic, the middle 224."""
        image = Image.open(io.BytesIO(data)).convert("RGB")
        short = min(image.size)
        image = image.resize([256 * side // short for side in image.size], Image.BICUBIC)
        left, top = ((side - 224) // 2 for side in image.size)
        pixels = numpy.asarray(image.crop((left, top, left + 224, top + 224)), dtype=numpy.float32)
        return ((pixels / 255 - mean) / deviation).transpose(2, 0, 1)[None]

    @app.get("/ready")
    def ready():
        return {}

    @app.post("/v1/classify")
    def classify(data: bytes = Body(media_type="application/octet-stream")):
        logits = session.run(None, {"input": prepare(data)})[0][0]
        shares = numpy.exp(logits - logits.max())
        shares /= shares.sum()
        best = numpy.argsort(-shares)[:5]
        return {"answers": [{"class": int(each), "probability": float(shares[each])} for each in best]}

    return app


def serve(model, port, processes):
    import uvicorn

    cores = len(os.sched_getaffinity(0))
    os.environ |= {"PEER_MODEL": model, "PEER_THREADS": str(max(1, cores // processes))}
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    uvicorn.run("serve_peer:create", factory=True, port=port, workers=processes, log_level="warning", access_log=False)


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(*sys.argv[2:4])
    else:
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
