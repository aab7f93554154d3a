"""Checks that the other libraries compute the same: differences of outputs for the same weights and inputs."""

import os
import statistics

import torch
import torch.nn.functional as functional
from safetensors.torch import load_file

import peers
import windows

# of the largest output
CLOSE = 1e-4
# in levels of 255, on average: decoders of JPEG round differently
PICTURES_CLOSE = 1.0
SINGLE = "torch's gradient in f32"
# of weights and pictures: in some a norm divides by almost zero, and f32 loses most digits
DRAWS = 9


def far(theirs, ours):
    """The largest difference, as a part of the largest value."""
    return ((theirs - ours).abs().max() / ours.abs().max()).item()


def loaded(preset, tensors):
    """The peer's model with our weights."""
    model = peers.create(preset)
    if preset not in peers.TIMM and preset != "vit-nano":
        return windows.load(model, tensors)
    state = model.state_dict()
    fitted = {name: tensor.reshape(state[name].shape) for name, tensor in tensors.items()}
    counters = {name: value for name, value in state.items() if name.endswith("num_batches_tracked")}
    model.load_state_dict(fitted | counters)
    return model


def gradients(tensors, name):
    """How far our loss and our gradient are from torch's in f64, and torch's in f32 from it.

    The judge is f64, since gradients of these networks lose digits in f32, whoever computes them. The steps of AdamW cannot
    be compared: the first one goes by the signs of the gradient, also where it is nothing but rounding.
    """
    images, losses = tensors.pop("images"), tensors.pop("losses")
    changes = {each.removeprefix("change."): tensors.pop(each) for each in list(tensors) if each.startswith("change.")}
    gradients_by_type = {}
    for kind in (torch.float64, torch.float32):
        model = loaded(name, tensors).to(kind).train()
        loss = functional.cross_entropy(model(images.to(kind)), torch.arange(len(images)) % 10)
        loss.backward()
        gradients_by_type[kind] = loss.item(), {each: parameter.grad for each, parameter in model.named_parameters()}
    (loss, exact), (_, single) = gradients_by_type[torch.float64], gradients_by_type[torch.float32]
    own = windows.renamed(loaded(name, tensors), changes)
    longest = torch.cat([each.flatten() for each in exact.values()]).norm()
    apart = lambda theirs: (torch.cat([(theirs[each].reshape(exact[each].shape) - exact[each]).flatten() for each in exact]).norm() / longest).item()
    return {"loss to torch in f64": abs(losses[0].item() - loss) / loss, "gradient to it": apart({each: -own[each] for each in exact}), SINGLE: apart(single)}


def differences(work, tensors, setting):
    """How far each peer is from us."""
    kind, name, *sizes = work.split()
    if kind == "prepared":
        images, logits = tensors.pop("images"), tensors.pop("logits")
        model = loaded(name, tensors)
        runs = {"torch": peers.in_torch(model, images)}
        if name in peers.TIMM:
            runs |= peers.in_runtimes(model, images, setting.threads)
        return {peer: far(run(), logits) for peer, run in runs.items()}
    if kind == "train":
        path = os.path.join(setting.folder, "gradient.safetensors")
        draws = []
        for _ in range(DRAWS):
            setting.ours.ask(f"check {path} gradient {name} {sizes[0]}")
            draws.append(gradients(load_file(path), name))
        return {each: statistics.median(draw[each] for draw in draws) for each in draws[0]}
    if kind == "pictures":
        folder, count = name, int(sizes[0])
        theirs = torch.stack(peers.pictures(folder, count, 1)())
        return {"PIL, mean in levels": ((theirs - tensors["pixels"]).abs().mean() * 0.226 * 255).item()}
    out = tensors.pop("out")
    gamma = None
    sizes = [int(size) for size in sizes]
    if name in ("pairwise", "patchwise"):
        parts = {each: tensors.pop(each) for each in list(tensors) if each.startswith("gamma.")}
        holder = torch.nn.ModuleDict({"gamma": peers.gamma_of(name, sizes)})
        if kind == "backward":
            # in training the running moments of the file are those after our runs; torch takes the batch's
            holder.train()
        else:
            holder.eval()
        gamma = windows.load(holder, parts)["gamma"]
    with torch.no_grad():
        return {"torch": far(peers.operator(name, sizes, tensors, gamma)(), out)}


def all_agree(rows, setting):
    agree = True
    for row in rows:
        if not row.work:
            continue
        work = row.work
        if work == "pictures":
            work = f"pictures {setting.photo_folder()} 8"
        path = os.path.join(setting.folder, "check.safetensors")
        setting.ours.ask(f"check {path} {work}")
        lines = []
        found = differences(work, load_file(path), setting)
        # networks with batch norms and ReLUs lose digits of their gradients in f32: torch's own error is the measure
        close = PICTURES_CLOSE if work.startswith("pictures") else max(CLOSE, 2 * found.get(SINGLE, 0))
        for peer, difference in found.items():
            fine = peer == SINGLE or difference < close
            agree &= fine
            lines.append(f"{peer} {difference:.1e}{'' if fine else ' TOO FAR'}")
        kind, preset, *_ = work.split()
        if kind in ("prepared", "train"):
            own = setting.ours.ask(f"parameters {preset}")
            counts = {"torch": sum(each.numel() for each in peers.create(preset).parameters())}
            if preset.startswith("vit") and setting.rivals:
                counts |= {rival: setting.rivals.ask(f"parameters {rival} {preset}") for rival in ("burn", "candle")}
            for peer, count in counts.items():
                agree &= count == own
                lines.append(f"{peer} has {count:,.0f} parameters" + ("" if count == own else f", we {own:,.0f}: OTHER"))
        print(f"{row.name}: {', '.join(lines)}", flush=True)
    print("all results agree" if agree else "some results differ")
    return agree
