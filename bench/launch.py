"""Reads commands as JSON lines, runs each and reports its time and peak memory, from `wait4`."""

import json
import os
import sys
import time

for line in sys.stdin:
    command, environment = json.loads(line)
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.execve(command[0], command, environment)
    _, status, usage = os.wait4(child, 0)
    report = {
        "status": os.waitstatus_to_exitcode(status),
        "wall": time.perf_counter() - start,
        "work": usage.ru_utime + usage.ru_stime,
        "peak": usage.ru_maxrss * 1024,
    }
    print(json.dumps(report), flush=True)
