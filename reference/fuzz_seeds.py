"""Small files of weights of every kind, for `crates/regard-serve/tests/fuzz.rs` to damage.

    python reference/fuzz_seeds.py crates/regard-serve/tests/seeds/weights
"""

import sys
from pathlib import Path

import numpy
import safetensors.torch
import torch

folder = Path(sys.argv[1])
torch.manual_seed(0)
tensors = {"head.weight": torch.randn(3, 4), "head.bias": torch.randn(3), "scale": torch.randn(2, 1, 2).half()}
safetensors.torch.save_file(tensors, folder / "float.safetensors")
rounded = {"head.weight": torch.randint(-128, 128, (3, 4), dtype=torch.int8), "head.weight_scale": torch.rand(3)}
safetensors.torch.save_file(rounded, folder / "bytes.safetensors")
torch.save({"model": tensors, "epoch": 3}, folder / "zip.pth")
torch.save(tensors, folder / "legacy.pth", _use_new_zipfile_serialization=False)
arrays = {"head/kernel": numpy.arange(12, dtype=numpy.float32).reshape(4, 3), "step": numpy.array(7)}
numpy.savez(folder / "stored.npz", **arrays)
numpy.savez_compressed(folder / "packed.npz", **arrays)
