"""SAN and SASA in PyTorch as people write them without a kernel of their own: every window unfolded.

Modules carry the names of Regard's parameters, so that its weights load strictly: `bench/run --check` compares both.
"""

import torch
from torch import nn
from torch.nn import functional

# operators; a window's offsets are numbered row by row


def dot_product(query, key, value):
    """[B, A, N, K] three times; the weights are formed."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return scores.softmax(-1) @ value


def unfold(maps, window, mode="reflect"):
    """[B, C, H, W] -> [B, C, k*k, H*W]"""
    batch, channels, height, width = maps.shape
    reach = window // 2
    padded = functional.pad(maps, [reach] * 4, mode=mode)
    return functional.unfold(padded, window).view(batch, channels, window * window, height * width)


def local(query, key, value, rows, columns, heads, outside):
    """[B, C, H, W] three times; row and column embeddings [A, K/2, k]; `outside` is `outside_of` these sizes."""
    batch, channels, height, width = query.shape
    window, pixels = rows.shape[-1], height * width
    query = query.view(batch, heads, channels // heads, pixels)
    key, value = (unfold(maps, window, "constant").view(batch, heads, -1, window**2, pixels) for maps in (key, value))
    scores = (query.unsqueeze(3) * key).sum(2)
    first, second = query.chunk(2, dim=2)
    down = rows.transpose(1, 2) @ first
    right = columns.transpose(1, 2) @ second
    scores = scores + (down.unsqueeze(3) + right.unsqueeze(2)).flatten(2, 3)
    weights = scores.masked_fill(outside, float("-inf")).softmax(2)
    return (weights.unsqueeze(2) * value).sum(3).view(batch, channels, height, width)


def outside_of(height, width, window):
    """[1, 1, k*k, H*W]: which pixels of a window are not in the picture."""
    return unfold(torch.ones(1, 1, height, width), window, "constant") == 0


def aggregate(weights, beta, window):
    """[B, Cw, k*k, H*W], [B, C, H, W] -> [B, C, H, W]: channel c uses weight c mod Cw."""
    batch, channels, height, width = beta.shape
    values = unfold(beta, window).view(batch, -1, weights.shape[1], window**2, height * width)
    return (weights.unsqueeze(1) * values).sum(3).view(batch, channels, height, width)


def pairwise(phi, psi, beta, place, gamma, window):
    """Subtraction with relative positions; `place` is [1, 2, H, W]."""
    relation = phi.flatten(2).unsqueeze(2) - unfold(psi, window)
    there = place.flatten(2).unsqueeze(2) - unfold(place, window)
    relation = torch.cat([relation, there.expand(len(phi), -1, -1, -1)], 1)
    return aggregate(gamma(relation).softmax(2), beta, window)


def patchwise(phi, psi, beta, gamma, window):
    """Concatenation."""
    patch = unfold(psi, window).flatten(1, 2)
    weights = gamma(torch.cat([phi.flatten(2), patch], 1).unsqueeze(2))
    return aggregate(weights.view(len(phi), -1, window**2, patch.shape[-1]), beta, window)


def coordinates(height, width):
    """[1, 2, H, W]: columns, then rows, from -1 to 1."""
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    return torch.stack([columns, rows]).unsqueeze(0)


# parts


class Gamma(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, hidden, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(hidden)
        self.conv2 = nn.Conv2d(hidden, outputs, 1)

    def forward(self, relation):
        hidden = self.conv1(self.norm1(relation).relu())
        return self.conv2(self.norm2(hidden).relu())


class LocalAttention(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.query, self.key, self.value = (nn.Conv2d(width, width, 1, bias=False) for _ in range(3))
        self.relative = Relative(width, heads, window)
        self.outside = {}

    def forward(self, maps):
        size = tuple(maps.shape[2:])
        if size not in self.outside:
            self.outside[size] = outside_of(*size, self.window)
        query, key, value = self.query(maps), self.key(maps), self.value(maps)
        return local(query, key, value, self.relative.rows, self.relative.columns, self.heads, self.outside[size])


class Relative(nn.Module):
    def __init__(self, width, heads, offsets):
        super().__init__()
        shape = heads, width // heads // 2, offsets
        self.rows, self.columns = (nn.Parameter(torch.randn(shape) * (width // heads) ** -0.5) for _ in range(2))


class AttentionStem(nn.Module):
    """Attention inside aligned blocks; a pixel's value is a mixture of maps that depends on its position."""

    def __init__(self, channels, width, heads, block, maps):
        super().__init__()
        self.heads, self.block, self.maps = heads, block, maps
        head = width // heads
        self.query, self.key = (nn.Conv2d(channels, width, 1, bias=False) for _ in range(2))
        self.values = nn.Conv2d(channels, maps * width, 1, bias=False)
        self.place_rows, self.place_columns = (nn.Parameter(torch.randn(head, block) * head**-0.5) for _ in range(2))
        self.nu = nn.Parameter(torch.randn(maps, head) * head**-0.5)
        self.relative = Relative(width, heads, 2 * block - 1)

    def blocks(self, maps):
        """[B, A*K, H, W] -> [B*blocks, A, b*b, K]"""
        batch, channels, height, width = maps.shape
        block, head = self.block, channels // self.heads
        parts = maps.view(batch, self.heads, head, height // block, block, width // block, block)
        return parts.permute(0, 3, 5, 1, 4, 6, 2).reshape(-1, self.heads, block * block, head)

    def towards(self, query, embedding):
        """[.., K/2], [A, K/2, 2b-1] -> [.., b*b places, b offsets along an axis]"""
        return (query @ embedding).view(-1, self.heads, self.block, self.block, 2 * self.block - 1)

    def forward(self, images):
        batch, _, height, width = images.shape
        block = self.block
        places = self.place_rows.unsqueeze(2) + self.place_columns.unsqueeze(1)
        mixture = (self.nu @ places.flatten(1)).softmax(0).view(self.maps, block, block)
        values = self.values(images).view(batch, self.maps, -1, height // block, block, width // block, block)
        value = (values * mixture.view(1, self.maps, 1, 1, block, 1, block)).sum(1)
        query, key = self.blocks(self.query(images)), self.blocks(self.key(images))
        value = self.blocks(value.reshape(batch, -1, height, width))
        first, second = query.chunk(2, dim=-1)
        # a query in row a meets the rows of the keys at offsets -a .. b-1-a
        down, right = self.towards(first, self.relative.rows), self.towards(second, self.relative.columns)
        down = torch.stack([down[:, :, a, :, block - 1 - a : 2 * block - 1 - a] for a in range(block)], 2)
        right = torch.stack([right[:, :, :, a, block - 1 - a : 2 * block - 1 - a] for a in range(block)], 3)
        near = (down.unsqueeze(-1) + right.unsqueeze(-2)).view(-1, self.heads, block**2, block**2)
        out = (query @ key.transpose(-2, -1) + near).softmax(-1) @ value
        out = out.view(batch, height // block, width // block, self.heads, block, block, -1)
        return out.permute(0, 3, 6, 1, 4, 2, 5).reshape(batch, -1, height, width)


# SAN


class SanUnit(nn.Module):
    def __init__(self, width, window, kind):
        super().__init__()
        related, outputs = width // 16, width // 4
        weights = outputs // 8
        self.window, self.kind, self.coordinates = window, kind, {}
        self.phi, self.psi = (nn.Conv2d(width, related, 1) for _ in range(2))
        self.beta = nn.Conv2d(width, outputs, 1)
        if kind == "pairwise":
            self.place = nn.Conv2d(2, 2, 1)
            self.gamma = Gamma(related + 2, related, weights)
        else:
            self.gamma = Gamma(related * (window**2 + 1), weights, weights * window**2)

    def forward(self, maps):
        phi, psi, beta = self.phi(maps), self.psi(maps), self.beta(maps)
        if self.kind == "patchwise":
            return patchwise(phi, psi, beta, self.gamma, self.window)
        size = tuple(maps.shape[2:])
        if size not in self.coordinates:
            self.coordinates[size] = coordinates(*size).to(maps)
        return pairwise(phi, psi, beta, self.place(self.coordinates[size]), self.gamma, self.window)


class SanBlock(nn.Module):
    def __init__(self, width, window, kind):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width)
        self.sam = SanUnit(width, window, kind)
        self.bn2 = nn.BatchNorm2d(width // 4)
        self.conv = nn.Conv2d(width // 4, width, 1)

    def forward(self, maps):
        attended = self.sam(self.bn1(maps).relu())
        return maps + self.conv(self.bn2(attended).relu())


class SanStage(nn.Module):
    def __init__(self, before, width, blocks, window, kind):
        super().__init__()
        self.conv = nn.Conv2d(before, width, 1, bias=False)
        self.layer = nn.Sequential(*(SanBlock(width, window, kind) for _ in range(blocks)))
        self.bn = nn.BatchNorm2d(width)

    def forward(self, maps):
        return self.bn(self.layer(self.conv(functional.max_pool2d(maps, 2)))).relu()


class San(nn.Module):
    def __init__(self, kind, widths, blocks, windows, classes):
        super().__init__()
        self.conv_in = nn.Conv2d(3, widths[0], 1, bias=False)
        self.bn_in = nn.BatchNorm2d(widths[0])
        before = [widths[0], *widths]
        stages = zip(before, widths, blocks, windows)
        self.stages = nn.Sequential(*(SanStage(*stage, kind) for stage in stages))
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, images):
        maps = self.stages(self.bn_in(self.conv_in(images)).relu())
        return self.fc(maps.mean((2, 3)))


# SASA


class Shortcut(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, maps):
        return self.bn(self.conv(maps))


class SasaBlock(nn.Module):
    def __init__(self, inputs, width, stride, heads, window, projects):
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.spatial = LocalAttention(width, heads, window)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = Shortcut(inputs, 4 * width, stride) if projects else nn.Identity()

    def forward(self, maps):
        mixed = self.spatial(self.bn1(self.conv1(maps)).relu())
        if self.stride == 2:
            mixed = functional.avg_pool2d(mixed, 2, ceil_mode=True, count_include_pad=False)
        wide = self.bn3(self.conv3(self.bn2(mixed).relu()))
        return (wide + self.shortcut(maps)).relu()


class SasaStem(nn.Module):
    def __init__(self, width, heads, block, maps):
        super().__init__()
        self.attn = AttentionStem(3, width, heads, block, maps)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, images):
        return functional.max_pool2d(self.bn(self.attn(images)).relu(), self.attn.block)


class Sasa(nn.Module):
    def __init__(self, stem_width, block, widths, blocks, window, classes, heads=8):
        super().__init__()
        self.stem = SasaStem(stem_width, 4, block, 4)
        groups, inputs = [], stem_width
        for group, (width, count) in enumerate(zip(widths, blocks)):
            stride = 1 if group == 0 else 2
            first = SasaBlock(inputs, width, stride, heads, window, True)
            others = (SasaBlock(4 * width, width, 1, heads, window, False) for _ in range(count - 1))
            groups.append(nn.Sequential(first, *others))
            inputs = 4 * width
        self.groups = nn.Sequential(*groups)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images):
        return self.fc(self.groups(self.stem(images)).mean((2, 3)))


def create(preset):
    """The model of one of Regard's presets."""
    family, *rest = preset.split("-")
    if preset.startswith("san10-"):
        return San(rest[0], [64, 256, 512, 1024, 2048], [2, 1, 2, 4, 1], [3, 7, 7, 7, 7], 1000)
    if preset.startswith("san-nano-"):
        return San(rest[1], [64, 256, 512], [2, 3, 4], [3, 5, 5], 10)
    if preset == "sasa-resnet26":
        return Sasa(64, 4, [64, 128, 256, 512], [1, 2, 4, 1], 7, 1000)
    if preset == "sasa-nano":
        return Sasa(32, 2, [32, 64, 128], [2, 3, 3], 5, 10)
    raise ValueError(f"no model of windows `{preset}` (of {family})")


def renamed(model, tensors):
    """Regard's tensors under the names of the model here; its 1x1 convolutions are linear maps [out, in]."""
    state = model.state_dict()
    # gamma's linear maps have no module of their own there
    names = {"linear1": "conv1.weight", "linear2": "conv2.weight", "bias2": "conv2.bias"}
    renamed_tensors = {}
    for name, tensor in tensors.items():
        part, _, last = name.rpartition(".")
        name = f"{part}.{names[last]}" if part.endswith("gamma") and last in names else name
        renamed_tensors[name] = tensor.reshape(state[name].shape) if name in state else tensor
    return renamed_tensors


def load(model, tensors):
    counters = {name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")}
    model.load_state_dict(renamed(model, tensors) | counters)
    return model
