#!/usr/bin/env python3
"""Kills `llm-dist coordinator` again and again while clients submit jobs, then compares its store with a ledger of what
was acknowledged: no acknowledged job lost, no id given twice, no change of state skipped.

40 kills; LLM_DIST_FULL=1: 1,000. LLM_DIST_BINARY names the program. Ends with 77 where there is none.
"""
import http.client
import json
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ranks"))
from harness import free_port, wait_until  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("LLM_DIST_BINARY", str(ROOT / "build/release/launch/llm-dist"))
KILLS = 1000 if os.environ.get("LLM_DIST_FULL") else 40
CLIENTS = 12
START_SECONDS = 120


class Coordinator:
    def __init__(self, folder, *options):
        self.folder = pathlib.Path(folder)
        self.options = options
        self.port = free_port()
        self.process = None
        catalogue = {"models": {"m": {"path": "/nowhere.gguf"}}}
        (self.folder / "models.json").write_text(json.dumps(catalogue))

    def start(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [BINARY, "coordinator", "--catalogue", self.folder / "models.json", "--store", self.folder / "store.db",
                 "--slots", "1", "--port", str(self.port), *self.options],
                stdout=subprocess.DEVNULL, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                if self.request("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                time.sleep(0.005)
            if self.process.poll() is not None:
                break
        raise AssertionError("the coordinator does not start:\n" + (self.folder / "log").read_text()[-2000:])

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=START_SECONDS)

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()


class Ledger:
    """What the clients were promised."""

    def __init__(self):
        self.lock = threading.Lock()
        self.next_key = 0
        self.doubtful = []
        self.acknowledged = {}
        self.replayed = 0
        self.problems = []
        self.stopping = False

    def take_key(self):
        with self.lock:
            if self.doubtful:
                return self.doubtful.pop()
            if self.stopping:
                return None
            self.next_key += 1
            return f"key-{self.next_key}"

    def settle(self, key, status, headers, body):
        with self.lock:
            if status == 201:
                self.acknowledged[key] = json.loads(body)["id"]
                self.replayed += headers.get("Idempotent-Replayed") == "true"
                return
            self.doubtful.append(key)
            # Its first request may still be on its way to the disk when the same key comes again.
            if status not in (409, 503):
                self.problems.append(f"{key}: {status} {body!r}")


def submit_forever(coordinator, ledger):
    # More ranks than there are slots: the job fails at once, which makes a second change of each.
    body = json.dumps({"type": "serve", "model": "m", "tp": 2})
    connection = None
    while True:
        key = ledger.take_key()
        if key is None:
            if connection:
                connection.close()
            return
        try:
            connection = connection or http.client.HTTPConnection("127.0.0.1", coordinator.port, timeout=10)
            connection.request("POST", "/v1/jobs", body, {"Idempotency-Key": key})
            reply = connection.getresponse()
            ledger.settle(key, reply.status, reply.headers, reply.read())
        except (OSError, http.client.HTTPException):
            with ledger.lock:
                ledger.doubtful.append(key)
            connection.close()
            connection = None
            time.sleep(0.01)


def check_store(path, ledger):
    problems = list(ledger.problems)
    store = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    allowed = set(store.execute("SELECT from_state, to_state FROM transitions"))
    jobs = {row[0]: row[1:] for row in store.execute("SELECT id, state, version FROM jobs")}
    keys = dict(store.execute("SELECT key, job FROM idempotency"))
    for key, name in ledger.acknowledged.items():
        number = int(name.removeprefix("job-"))
        if number not in jobs:
            problems.append(f"lost: {key} {name}")
        if keys.get(key) != number:
            problems.append(f"{key} was {name} and is {keys.get(key)}")
    if len(set(ledger.acknowledged.values())) != len(ledger.acknowledged):
        problems.append("an id was given twice")
    if len(jobs) != len(ledger.acknowledged):
        problems.append(f"{len(jobs)} jobs for {len(ledger.acknowledged)} keys")
    last = {}
    for job, number, before, after in store.execute(
            "SELECT job, number, from_state, to_state FROM events ORDER BY job, number"):
        previous_number, previous_state = last.get(job, (0, None))
        legal = before == previous_state and (before is None or before == after or (before, after) in allowed)
        if number != previous_number + 1 or not legal:
            problems.append(f"job-{job}: a gap at event {number}")
        last[job] = (number, after)
    for job, (state, version) in jobs.items():
        if last.get(job) != (version, state):
            problems.append(f"job-{job}: {state} at version {version}, last event {last.get(job)}")
    if store.execute("PRAGMA integrity_check").fetchone() != ("ok",):
        problems.append("the file is damaged")
    return problems


class KillTest(unittest.TestCase):
    def test_no_promise_is_broken(self):
        chance = random.Random(int(os.environ.get("LLM_DIST_SEED", "7")))
        with tempfile.TemporaryDirectory() as folder:
            coordinator = Coordinator(folder)
            coordinator.start()
            ledger = Ledger()
            clients = [threading.Thread(target=submit_forever, args=(coordinator, ledger)) for _ in range(CLIENTS)]
            for client in clients:
                client.start()
            alive_seconds = 0.0
            try:
                for _ in range(KILLS):
                    begin, before = time.monotonic(), len(ledger.acknowledged)
                    time.sleep(chance.uniform(0.02, 0.3))
                    wait_until(lambda: len(ledger.acknowledged) >= before + 2, START_SECONDS, "two jobs are acknowledged")
                    alive_seconds += time.monotonic() - begin
                    coordinator.kill()
                    coordinator.start()
            finally:
                ledger.stopping = True
                for client in clients:
                    client.join()
            rate = len(ledger.acknowledged) / alive_seconds
            print(f"{KILLS} kills, {len(ledger.acknowledged)} jobs acknowledged, {rate:.0f} a second of life, "
                  f"{ledger.replayed} answers lost between commit and reply")
            self.assertEqual(coordinator.stop(), 0)
            self.assertEqual(check_store(f"{folder}/store.db", ledger), [])
            self.assertGreater(len(ledger.acknowledged), KILLS)


if __name__ == "__main__":
    if not os.path.exists(BINARY):
        sys.exit(77)
    unittest.main(verbosity=2)
