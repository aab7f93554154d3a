"""The first prediction of one photo with ONNX Runtime: `cold_onnx.py MODEL PHOTO`, without torch."""

import os
import sys

import numpy
import onnxruntime
from PIL import Image

model, photo = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(os.environ["THREADS"])
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

picture = Image.open(photo).convert("RGB")
scale = 256 / min(picture.size)
picture = picture.resize([int(side * scale) for side in picture.size], Image.Resampling.BICUBIC)
left, top = ((side - 224) // 2 for side in picture.size)
pixels = numpy.asarray(picture.crop((left, top, left + 224, top + 224)), dtype=numpy.float32) / 255
mean = numpy.array([0.485, 0.456, 0.406], dtype=numpy.float32)
std = numpy.array([0.229, 0.224, 0.225], dtype=numpy.float32)
pixels = ((pixels - mean) / std).transpose(2, 0, 1)[None]

(logits,) = session.run(None, {session.get_inputs()[0].name: pixels})
probabilities = numpy.exp(logits[0] - logits[0].max())
probabilities /= probabilities.sum()
for index in probabilities.argsort()[::-1][:5]:
    print(f"{100 * probabilities[index]:6.2f} %  {index}")
