"""The first prediction of one photo with timm: `cold_timm.py ARCHITECTURE WEIGHTS PHOTO`."""

import sys

import timm
import torch
from PIL import Image
from safetensors.torch import load_file

architecture, weights, photo = sys.argv[1:]
model = timm.create_model(architecture, pretrained=False).eval()
model.load_state_dict(load_file(weights))
# 256 to 224, as DeiT's authors have it
config = timm.data.resolve_model_data_config(model) | {"crop_pct": 0.875}
transform = timm.data.create_transform(**config)
with torch.inference_mode():
    probabilities = model(transform(Image.open(photo).convert("RGB")).unsqueeze(0)).softmax(-1)
for probability, index in zip(*(part[0].tolist() for part in probabilities.topk(5))):
    print(f"{100 * probability:6.2f} %  {index}")
