#!/usr/bin/env python3
"""Measures the coordinator: submissions at 100 a second, and reads and start-up with many jobs in the store.

usage: latency.py [--jobs 100000] [--seconds 20]        LLM_DIST_BINARY names the program
"""
import argparse
import http.client
import json
import pathlib
import sqlite3
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from kill_test import Coordinator  # noqa: E402

RATE = 100
THREADS = 8


def quantile(values, fraction):
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))] * 1e3


def show(what, seconds):
    print(f"{what}: p50 {quantile(seconds, 0.5):.1f} ms, p99 {quantile(seconds, 0.99):.1f} ms, "
          f"max {max(seconds) * 1e3:.1f} ms, {len(seconds)} requests", flush=True)


def run_at_rate(coordinator, count, request_of):
    """Open loop: request i leaves at i / RATE, late or not; its time counts from when it should have left."""
    took, lock, begin = [], threading.Lock(), time.monotonic() + 0.2

    def work(first):
        connection = http.client.HTTPConnection("127.0.0.1", coordinator.port, timeout=30)
        for i in range(first, count, THREADS):
            due = begin + i / RATE
            time.sleep(max(0.0, due - time.monotonic()))
            method, path, body = request_of(i)
            connection.request(method, path, body)
            reply = connection.getresponse()
            reply.read()
            assert reply.status in (200, 201), reply.status
            with lock:
                took.append(time.monotonic() - due)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def fill(path, count):
    """Jobs that have ended, as a year leaves them, and a long queue."""
    store = sqlite3.connect(path)
    epoch = store.execute("SELECT epoch FROM writer").fetchone()[0]
    store.execute("BEGIN")
    for i in range(count):
        job = store.execute(
            "INSERT INTO jobs (project, kind, spec, priority, state, created_us, updated_us, epoch) VALUES "
            "('default', 'serve', '{\"model\":\"m\",\"tp\":1}', 0, 'QUEUED', ?, ?, ?)", (i, i, epoch)).lastrowid
        if i % 10:
            store.execute("UPDATE jobs SET state = 'CANCELLED', version = 2 WHERE id = ?", (job,))
        else:
            store.execute("UPDATE jobs SET state = 'SUSPENDED', version = 2 WHERE id = ?", (job,))
    store.execute("COMMIT")
    store.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    count = arguments.seconds * RATE
    body = json.dumps({"type": "serve", "model": "m", "tp": 2})
    with tempfile.TemporaryDirectory() as folder:
        coordinator = Coordinator(folder)
        coordinator.start()
        show("submit", run_at_rate(coordinator, count, lambda i: ("POST", "/v1/jobs", body)))
        coordinator.stop()
        fill(f"{folder}/store.db", arguments.jobs)
        begin = time.monotonic()
        coordinator.start()
        print(f"start with {arguments.jobs} jobs: {time.monotonic() - begin:.2f} s")
        show("get", run_at_rate(coordinator, count, lambda i: ("GET", f"/v1/jobs/job-{1 + i % arguments.jobs}", None)))
        lists = ["/v1/jobs", "/v1/jobs?state=CANCELLED,SUSPENDED", "/v1/jobs?state=RUNNING", "/v1/jobs?project=default",
                 f"/v1/jobs?after=job-{arguments.jobs // 2}&state=CANCELLED"]
        show("list", run_at_rate(coordinator, count, lambda i: ("GET", lists[i % len(lists)], None)))
        show("submit among them", run_at_rate(coordinator, count, lambda i: ("POST", "/v1/jobs", body)))
        coordinator.stop()


if __name__ == "__main__":
    main()
