"""The contestants: each runs on request and reports its time and peak memory."""

import json
import os
import subprocess
import sys
import time

# worker threads of the previous contestant may still be spinning
SETTLE = 0.02


class Process:
    """A program that answers each line with a number: `crates/regard/examples/peer.rs` or `bench/rivals`."""

    def __init__(self, path, threads):
        environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
        self.name = os.path.basename(path)
        self.process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} ended at `{line}`")
        return float(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Work:
    """A line that such a program understands."""

    def __init__(self, process, work, counts_memory=False):
        self.process, self.work, self.counts_memory = process, work, counts_memory

    def seconds(self, repeats):
        time.sleep(SETTLE)
        return self.process.ask(f"seconds {repeats} {self.work}")

    def peak(self):
        return self.process.ask(f"peak {self.work}") if self.counts_memory else None

    def forget(self):
        self.process.ask("drop")


class Here:
    """A function of this process."""

    def __init__(self, run, uses_torch=False):
        self.run, self.uses_torch = run, uses_torch

    def seconds(self, repeats):
        time.sleep(SETTLE)
        if repeats > 1:
            self.run()
        start = time.perf_counter()
        for _ in range(repeats):
            self.run()
        return (time.perf_counter() - start) / repeats

    def peak(self):
        return peak_of_torch(self.run) if self.uses_torch else None

    def forget(self):
        self.run = None


def peak_of_torch(run):
    """Bytes that torch's allocator hands out at the peak of a run, beyond what was there before."""
    import torch  # here, since `bench/turns` needs this file without torch

    run()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


class Launcher:
    """Starts programs from a small process: the peak memory of a child is at least that of its parent at the fork."""

    def __init__(self):
        path = os.path.join(os.path.dirname(__file__), "launch.py")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, command, environment):
        self.process.stdin.write(json.dumps([command, environment]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class Command:
    """A whole program, from its start to its end."""

    def __init__(self, launcher, command, environment):
        self.launcher, self.command, self.environment = launcher, command, environment
        self.spent = []

    def seconds(self, repeats):
        assert repeats == 1, "a program is started once"
        time.sleep(SETTLE)
        usage = self.launcher.run(self.command, self.environment)
        if usage["status"] != 0:
            raise RuntimeError(f"{' '.join(self.command)} ended with {usage['status']}")
        self.spent.append(usage)
        return usage["wall"]

    def peak(self):
        return max(usage["peak"] for usage in self.spent)

    def forget(self):
        pass
