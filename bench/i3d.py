"""I3D-50 with five non-local blocks in PyTorch, as PySlowFast's `I3D_NLN_8x8_R50` has it; no library on PyPI does."""

import torch
from torch import nn
from torch.nn import functional

STAGES = [3, 4, 6, 3]
# of s2 to s5: frames of each block's first convolution, and after which blocks a non-local block comes
FRAMES = [[3, 3, 3], [3, 1, 3, 1], [3, 1, 3, 1, 3, 1], [1, 3, 1]]
NON_LOCAL = [[], [1, 3], [1, 3, 5], []]


def convolution(inputs, outputs, kernel, stride=(1, 1, 1)):
    padding = [side // 2 for side in kernel]
    return nn.Sequential(nn.Conv3d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm3d(outputs))


class Block(nn.Module):
    def __init__(self, inputs, width, outputs, frames, stride):
        super().__init__()
        stride = (1, stride, stride)
        self.a = convolution(inputs, width, (frames, 1, 1))
        self.b = convolution(width, width, (1, 3, 3), stride)
        self.c = convolution(width, outputs, (1, 1, 1))
        self.shortcut = convolution(inputs, outputs, (1, 1, 1), stride) if inputs != outputs else nn.Identity()

    def forward(self, x):
        branch = self.c(functional.relu(self.b(functional.relu(self.a(x)))))
        return functional.relu(self.shortcut(x) + branch)


class NonLocal(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.inner = channels // 2
        self.theta, self.phi, self.g = (nn.Conv3d(channels, self.inner, 1) for _ in range(3))
        self.out, self.norm = nn.Conv3d(self.inner, channels, 1), nn.BatchNorm3d(channels)

    def forward(self, x):
        pooled = functional.max_pool3d(x, (1, 2, 2))
        query, key, value = self.theta(x).flatten(2), self.phi(pooled).flatten(2), self.g(pooled).flatten(2)
        weights = (query.transpose(1, 2) @ key * self.inner**-0.5).softmax(-1)
        found = (weights @ value.transpose(1, 2)).transpose(1, 2).reshape(x.shape[0], self.inner, *x.shape[2:])
        return x + self.norm(self.out(found))


class I3d(nn.Module):
    def __init__(self, classes=400):
        super().__init__()
        self.stem = convolution(3, 64, (5, 7, 7), (1, 2, 2))
        stages, inputs = [], 64
        for stage, count in enumerate(STAGES):
            layers, width = [], 64 << stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Block(inputs, width, 4 * width, FRAMES[stage][block], stride))
                inputs = 4 * width
                if block in NON_LOCAL[stage]:
                    layers.append(NonLocal(inputs))
            stages.append(nn.Sequential(*layers))
        self.stages, self.head = nn.ModuleList(stages), nn.Linear(inputs, classes)

    def forward(self, clips):
        x = functional.max_pool3d(functional.relu(self.stem(clips)), (1, 3, 3), (1, 2, 2), (0, 1, 1))
        for stage, layers in enumerate(self.stages):
            x = layers(x)
            if stage == 0:
                x = functional.max_pool3d(x, (2, 1, 1))
        return self.head(x.mean((2, 3, 4)))
