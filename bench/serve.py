"""Measures servers under load: `bench/serve` sets up what this needs."""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# answers under load must equal those of an idle server, up to rounding
TOLERANCE = 1e-5


class Connection:
    """A persistent connection with minimal HTTP."""

    def __init__(self, port):
        self.port, self.streams = port, None

    async def ask(self, method, path, body=b""):
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + body)
        status = int((await reader.readline()).split()[1])
        length = 0
        while line := (await reader.readline()).strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, await reader.readexactly(length)


class Server:
    def __init__(self, name, command, ready, port):
        self.name, self.ready, self.port = name, ready, port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    async def wait(self):
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit(f"error: {self.name} ended with status {self.process.returncode}")
            try:
                status, _ = await Connection(self.port).ask("GET", self.ready)
                if status == 200:
                    return
            except (OSError, asyncio.IncompleteReadError, IndexError):
                pass
            await asyncio.sleep(0.1)
        sys.exit(f"error: {self.name} is not ready after a minute")

    def memory(self):
        """Resident bytes of the server and its processes."""
        total = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(folder.name)) == self.process.pid:
                    total += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
            except (OSError, ValueError):
                pass
        return total

    def stop(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(60)


def same(answer, expected):
    pairs = zip(answer["answers"], expected["answers"], strict=True)
    return all(a["class"] == b["class"] and abs(a["probability"] - b["probability"]) < TOLERANCE for a, b in pairs)


async def load(server, photos, connections, seconds):
    alone = Connection(server.port)
    expected = []
    for photo in photos:
        status, body = await alone.ask("POST", "/v1/classify", photo)
        if status != 200:
            sys.exit(f"error: {server.name} answers {status}: {body[:200]}")
        expected.append(json.loads(body))
    times, refused, wrong, memory = [], 0, 0, [server.memory()]
    end = time.perf_counter() + seconds

    async def client(number):
        nonlocal refused, wrong
        connection, turn = Connection(server.port), number
        while (begin := time.perf_counter()) < end:
            which = turn % len(photos)
            turn += connections
            status, body = await connection.ask("POST", "/v1/classify", photos[which])
            if status != 200:
                refused += 1
                await asyncio.sleep(0.05)
                continue
            times.append(time.perf_counter() - begin)
            wrong += not same(json.loads(body), expected[which])

    async def watch():
        while time.perf_counter() < end:
            await asyncio.sleep(1)
            memory.append(server.memory())

    begin = time.perf_counter()
    await asyncio.gather(watch(), *(client(number) for number in range(connections)))
    taken = time.perf_counter() - begin
    if len(times) < 2:
        sys.exit(f"error: {server.name} gave {len(times)} answers in {taken:.0f} s")
    centiles = statistics.quantiles(times, n=100, method="inclusive")
    # the first seconds fill buffers and caches
    settled = memory[len(memory) // 3 :]
    return {
        "server": server.name,
        "answers": len(times),
        "per_second": len(times) / taken,
        "p50_ms": 1e3 * centiles[49],
        "p99_ms": 1e3 * centiles[98],
        "refused": refused,
        "wrong": wrong,
        "memory_mb": max(memory) / 2**20,
        "growth_mb": (settled[-1] - settled[0]) / 2**20,
        "classes": [each["answers"][0]["class"] for each in expected],
    }


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def servers(options, folder):
    """Servers are started one after the other."""

    def regard():
        port = free_port()
        model = f"deit-tiny={options.weights}"
        command = [os.environ["REGARD"], "serve", "--model", model, "--port", str(port)]
        return Server("regard", command, "/v2/health/ready", port)

    def peer(processes):
        def start():
            port = free_port()
            command = [sys.executable, "bench/serve_peer.py", "serve", f"{folder}/model.onnx", str(port), str(processes)]
            name = f"fastapi, {processes} process" + "es" * (processes > 1)
            return Server(name, command, "/ready", port)

        return start

    cores = len(os.sched_getaffinity(0))
    return [regard] if options.alone else [regard, peer(1), peer(cores), regard]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", required=True, type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--alone", action="store_true", help="regard without its peer")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    photos = [path.read_bytes() for path in sorted(options.photos.iterdir()) if path.suffix.lower() in (".jpg", ".jpeg")]
    if not photos:
        sys.exit(f"error: no JPEG in {options.photos}")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        if not options.alone:
            export = [sys.executable, "bench/serve_peer.py", "export", options.weights, f"{folder}/model.onnx"]
            subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
        print("server                 answers/s   p50 ms   p99 ms  refused  wrong  memory MB  growth MB")
        for start in servers(options, folder):
            server = start()
            try:
                asyncio.run(server.wait())
                result = asyncio.run(load(server, photos, options.connections, options.seconds))
            finally:
                server.stop()
            results.append(result)
            print(
                "{server:<22} {per_second:>9.1f} {p50_ms:>8.0f} {p99_ms:>8.0f} {refused:>8} {wrong:>6} "
                "{memory_mb:>10.0f} {growth_mb:>10.1f}".format(**result),
                flush=True,
            )
    for result in results[1:]:
        pairs = zip(results[0]["classes"], result["classes"], strict=True)
        print(f"{result['server']}: {sum(a == b for a, b in pairs)} of {len(photos)} answers are those of regard")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if any(result["wrong"] for result in results):
        sys.exit("error: some answers under load differ from those of an idle server")


if __name__ == "__main__":
    main()
