"""Figures of the results, as SVG for pages and PNG for looking at."""

import os

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker

# colours of Okabe and Ito, distinguishable with colour blindness
COLOURS = {
    "ours": "#000000",
    "torch": "#D55E00",
    "torch's own kernel": "#E69F00",
    "onnxruntime": "#009E73",
    "openvino": "#0072B2",
    "burn": "#CC79A7",
    "candle": "#56B4E9",
    "ours by layers": "#999999",
    "ours in f32": "#999999",
    "timm": "#D55E00",
    "PIL": "#E69F00",
}
MARKS = {"ours": "o", "torch": "s", "torch's own kernel": "D", "onnxruntime": "^", "openvino": "v", "burn": "P", "candle": "X"}

pyplot.rcParams.update({"svg.fonttype": "none", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False})


def save(figure, folder, name):
    os.makedirs(folder, exist_ok=True)
    for ending in ("svg", "png"):
        figure.savefig(os.path.join(folder, f"{name}.{ending}"), dpi=110, bbox_inches="tight", metadata={"Date": None} if ending == "svg" else None)
    pyplot.close(figure)


def plain(axis):
    """1, 2, 5, 10 instead of powers."""
    axis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5), numticks=20))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def ratios(results, folder):
    """Every row of every section: how many times as long the peers take, with quartiles."""
    sections = list(dict.fromkeys(result["section"] for result in results))
    lines = []
    for section in sections:
        lines.append((section, None))
        lines += [(result["row"], result) for result in results if result["section"] == section]
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.34 * len(lines)))
    peers = list(dict.fromkeys(peer for result in results for peer in result["ratios"]))
    for place, (name, result) in enumerate(lines):
        if result is None:
            continue
        axes.axhline(place, color="#dddddd", linewidth=0.8, zorder=0)
        shown = list(result["ratios"])
        for index, peer in enumerate(shown):
            ratio = result["ratios"][peer]
            height = place + 0.5 * ((index + 0.5) / len(shown) - 0.5)
            axes.plot(ratio["quartiles"], [height] * 2, color=COLOURS.get(peer, "#666666"), linewidth=2)
            axes.plot(ratio["median"], height, MARKS.get(peer, "o"), color=COLOURS.get(peer, "#666666"), markersize=5)
    axes.axvline(1, color="#000000", linewidth=1)
    axes.set_xscale("log")
    plain(axes.xaxis)
    axes.set_yticks(range(len(lines)), [name for name, _ in lines])
    for label, (_, result) in zip(axes.get_yticklabels(), lines):
        label.set_fontweight("bold" if result is None else "normal")
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("time of the peer over ours, median and quartiles: right of the line we are faster")
    handles = [pyplot.Line2D([], [], color=COLOURS.get(peer, "#666666"), marker=MARKS.get(peer, "o"), label=peer) for peer in peers]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=min(5, len(peers)), frameon=False)
    save(figure, folder, "ratios")


def curves(panels, title, folder, name, highest=None):
    """Panels side by side, each a dictionary: title, x, y, lines as (name, xs, ys), limits as (words, xs, ys)."""
    figure, row = pyplot.subplots(1, len(panels), figsize=(5.2 * len(panels), 4.2), squeeze=False)
    for axes, panel in zip(row[0], panels):
        for peer, xs, ys in panel["lines"]:
            axes.plot(xs, ys, color=COLOURS.get(peer, "#666666"), marker=MARKS.get(peer, "o"), markersize=5, label=peer)
        for words, xs, ys in panel.get("limits", []):
            axes.plot(xs, ys, color="#555555", linestyle=panel.get("style", {}).get(words, "--"), linewidth=1.2, label=words)
        axes.set_xscale("log", base=2 if panel.get("base2") else 10)
        xs = sorted({x for _, line, _ in panel["lines"] for x in line})
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        if panel.get("log", True):
            axes.set_yscale("log")
            plain(axes.yaxis)
        else:
            axes.set_ylim(0, highest)
        axes.set_xlabel(panel["x"])
        axes.set_ylabel(panel["y"])
        axes.set_title(panel["title"], fontsize=10)
        axes.grid(color="#eeeeee")
        # below, where no curve is
        axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    save(figure, folder, name)
