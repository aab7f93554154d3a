"""From the times of rounds to numbers."""

import math
import statistics


def repeats_for(seconds, least):
    """Runs within one measurement, so that the clock's grain does not show.

    At least three of what is short, after one that is not counted: the first run after the others' turns is up to half
    slower, and with fewer repeats for whoever is just above a limit the ratio would be one of cold to warm.
    """
    fewest = 3 if seconds < 0.5 else 1
    return max(fewest, min(100, math.ceil(least / max(seconds, 1e-6))))


def spread(values):
    if len(values) == 1:
        values = values * 2
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "quartiles": [low, high]}


def cell(ratio):
    low, high = ratio["quartiles"]
    return f"{ratio['median']:.2f} ({low:.2f}-{high:.2f})"
