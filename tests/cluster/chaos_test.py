#!/usr/bin/env python3
"""A batch on two real replicas of the small model while ranks, their keepers and the coordinator are killed and stopped at
random: each custom_id is exactly once in the output or the error file, the answers are those of an undisturbed run, and
nothing is left behind.

48 items and 3 faults; LLM_DIST_FULL=1: 2,000 and 30. LLM_DIST_SEED chooses the faults, LLM_DIST_TP the ranks of a
replica (1). Ends with 77 where program or model are missing.
"""
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import unittest
import urllib.request
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from kill_test import BINARY  # noqa: E402
from replicas_test import MODEL, Cluster  # noqa: E402

FULL = bool(os.environ.get("LLM_DIST_FULL"))
ITEMS, FAULTS = (2000, 30) if FULL else (48, 3)
MOST_TOKENS = 8 if FULL else 128  # so that few items, too, last until all replicas are there
SEED = int(os.environ.get("LLM_DIST_SEED", "3"))
TP = int(os.environ.get("LLM_DIST_TP", "1"))
REPLICAS = 2
EPSILON = 1e-3  # of a log-probability in float32: sums in another order, and greedy ties
PATIENCE = 3600 if FULL else 600
WORDS = ("time river stone light garden winter music road house bird letter ocean mountain table window story friend "
         "morning color number").split()


def make_items():
    draw = random.Random(SEED)
    lines = []
    for i in range(ITEMS):
        prompt = "The " + " ".join(draw.choice(WORDS) for _ in range(draw.choice([2, 4, 8])))
        body = {"model": "smollm2", "prompt": prompt, "max_tokens": draw.randint(1, MOST_TOKENS), "temperature": 0,
                "ignore_eos": True, "skip_special_tokens": False, "logprobs": 5}
        lines.append(json.dumps({"custom_id": f"item-{i}", "method": "POST", "url": "/v1/completions", "body": body}))
    return "\n".join(lines) + "\n"


def upload(cluster, content):
    boundary = uuid.uuid4().hex
    form = (f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
            f'{content}\r\n--{boundary}--\r\n')
    request = urllib.request.Request(f"http://127.0.0.1:{cluster.port}/v1/files", data=form.encode(),
                                     headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["id"]


def start_batch(cluster, content):
    return cluster.call("POST", "/v1/batches", {
        "input_file_id": upload(cluster, content), "endpoint": "/v1/completions", "completion_window": "24h",
        "replicas": REPLICAS, "tp": TP})["id"]


def look_at(cluster, batch):
    """The batch, or nothing while nobody answers."""
    seen = cluster.call("GET", f"/v1/batches/{batch}")
    if seen and seen["status"] in ("failed", "expired", "cancelled"):
        raise AssertionError(f"{seen}\n{(cluster.folder / 'log').read_text()[-3000:]}\n{cluster.logs()}")
    return seen


def num_recorded(cluster, batch):
    seen = look_at(cluster, batch)
    return seen["request_counts"]["completed"] + seen["request_counts"]["failed"] if seen else -1


def lines_of(cluster, file):
    if file is None:
        return []
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.port}/v1/files/{file}/content", timeout=60) as reply:
        return [json.loads(line) for line in reply.read().decode().splitlines()]


class Chaos:
    """Faults, each kind as often as the others, in a random order."""
    KINDS = ["kill a rank", "kill the coordinator", "kill a keeper", "stop a rank", "end the coordinator",
             "stop the coordinator", "stop a keeper"]

    def __init__(self, cluster):
        self.cluster = cluster
        self.draw = random.Random(SEED)
        self.deck = (self.KINDS * FAULTS)[:FAULTS]
        self.draw.shuffle(self.deck)
        self.segments = set()  # of shared memory, as our processes have them mapped
        self.worlds = set()  # folders of attempts in shared memory
        self.done = []

    def next(self):
        kind = self.deck.pop()
        self.segments |= self.cluster.segments()
        self.worlds |= self.cluster.worlds()
        verb, _, what = kind.split()
        if what == "coordinator":
            self.hit_coordinator(verb)
        else:
            self.hit(what, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
        self.done.append(kind)

    def hit(self, what, number):
        def victims():
            return [pid for pid, line in self.cluster.processes().items()
                    if len(line) > 1 and (line[1] == "keep") == (what == "keeper") and "serve" in line
                    and not line[0].endswith("mpirun")]
        found = self.cluster.wait_for(victims, f"a {what} to live")
        try:
            os.kill(self.draw.choice(found), number)
        except ProcessLookupError:
            pass  # it was about to end anyway

    def hit_coordinator(self, verb):
        process = self.cluster.process
        if verb == "stop":
            process.send_signal(signal.SIGSTOP)
            time.sleep(self.draw.uniform(0.1, 2))
            process.send_signal(signal.SIGCONT)
            return
        process.send_signal(signal.SIGKILL if verb == "kill" else signal.SIGTERM)
        process.wait(timeout=60)
        time.sleep(self.draw.uniform(0, 1))
        self.cluster.start()


def first_difference(one, other):
    """Where two lists of (token, {token: log-probability}) part."""
    for i, (a, b) in enumerate(zip(one, other)):
        if a[0] != b[0]:
            return i
    return None


def tokens_of(line):
    logprobs = line["response"]["body"]["choices"][0]["logprobs"]
    return list(zip(logprobs["tokens"], logprobs["top_logprobs"]))


class ChaosTest(unittest.TestCase):
    def cluster(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        cluster = Cluster(folder.name, slots=REPLICAS * TP)
        self.addCleanup(cluster.end)
        cluster.start()
        return cluster

    def run_batch(self, content, faults):
        cluster = self.cluster()
        chaos = Chaos(cluster)
        begin = time.monotonic()
        batch = start_batch(cluster, content)
        for fault in range(1, faults + 1):
            # By what is done, not by the clock: every fault meets the batch, however fast the machine is.
            cluster.wait_for(lambda: num_recorded(cluster, batch) >= ITEMS * fault // (faults + 1),
                             f"item {ITEMS * fault // (faults + 1)}", PATIENCE)
            chaos.next()
        done = cluster.wait_for(lambda: (lambda seen: seen and seen["status"] == "completed" and seen)(
            look_at(cluster, batch)), "the batch to be completed", PATIENCE)
        seconds = time.monotonic() - begin
        output, errors = lines_of(cluster, done["output_file_id"]), lines_of(cluster, done["error_file_id"])
        ids = [line["custom_id"] for line in output + errors]
        self.assertEqual(sorted(ids), sorted(f"item-{i}" for i in range(ITEMS)), "each exactly once")
        self.check_all_worked(cluster, batch)
        self.nothing_left(cluster, chaos)
        return output, errors, seconds, chaos.done

    def check_all_worked(self, cluster, batch):
        jobs = cluster.call("GET", "/v1/jobs")["data"]
        replicas = [job for job in jobs if job["replica_of"] == batch]
        self.assertEqual(len(replicas), REPLICAS - 1)
        for job in jobs:
            attempts = cluster.call("GET", f"/v1/jobs/{job['id']}/attempts")["data"]
            self.assertTrue(any(attempt["endpoint"] for attempt in attempts), f"{job['id']} never served")

    def nothing_left(self, cluster, chaos):
        cluster.wait_for(lambda: not cluster.processes(), "every process to end")
        jobs = cluster.call("GET", "/v1/jobs")["data"]
        cluster.wait_for(lambda: all(cluster.call("GET", f"/v1/jobs/{job['id']}")["state"] in ("SUCCEEDED", "CANCELLED")
                                     for job in jobs), "every job to end")
        self.assertEqual(bool(chaos.worlds), TP > 1 and bool(chaos.done), "who starts mpirun has a folder")
        self.assertEqual([name for name in chaos.segments | chaos.worlds | cluster.worlds() if name.exists()], [],
                         "shared memory")
        files = {file["id"] for file in cluster.call("GET", "/v1/files")["data"]}
        self.assertEqual(len(list((cluster.folder / "store.db.files").iterdir())), len(files), "contents without a name")
        cluster.process.terminate()
        self.assertEqual(cluster.process.wait(timeout=60), 0)
        self.assertEqual(list((cluster.folder / "tmp").rglob("*")), [], "temporary files")
        known = {"log", "models.json", "tmp", "store.db", "store.db-wal", "store.db-shm", "store.db.lock",
                 "store.db.secret", "store.db.jobs", "store.db.files"}
        self.assertLessEqual({entry.name for entry in cluster.folder.iterdir()}, known)

    def compare(self, output, reference):
        """The number of answers that fell differently at a tie. After it there is nothing to compare."""
        expected = {line["custom_id"]: line for line in reference}
        ties = 0
        for line in output:
            self.assertEqual(line["response"]["status_code"], 200, line)
            got, want = tokens_of(line), tokens_of(expected[line["custom_id"]])
            self.assertEqual(len(got), len(want), line["custom_id"])
            at = first_difference(got, want)
            if at is None:
                continue
            ties += 1
            for (token, _), (_, top) in ((got[at], want[at]), (want[at], got[at])):
                self.assertIn(token, top, f"{line['custom_id']} at {at}")
                self.assertLessEqual(max(top.values()) - top[token], EPSILON, f"{line['custom_id']} at {at}")
        return ties

    def test_a_batch_lives_through_everything(self):
        content = make_items()
        reference, failed, seconds, _ = self.run_batch(content, 0)
        self.assertEqual(failed, [])
        print(f"undisturbed: {ITEMS} items on {REPLICAS} replicas in {seconds:.0f} s", flush=True)
        output, errors, seconds, done = self.run_batch(content, FAULTS)
        print(f"{len(done)} faults: {ITEMS} items in {seconds:.0f} s, {len(errors)} quarantined; "
              + ", ".join(f"{done.count(kind)} × {kind}" for kind in Chaos.KINDS if kind in done), flush=True)
        for line in errors:
            # In flight at two deaths, both of ours: that is what the rule is for.
            self.assertEqual(line["error"]["code"], "quarantined", line)
        self.assertLessEqual(len(errors), FAULTS)
        print(f"{self.compare(output, reference)} answers differ from those of the undisturbed run, at ties", flush=True)


if __name__ == "__main__":
    if not os.path.exists(BINARY) or not MODEL.exists():
        sys.exit(77)
    unittest.main(verbosity=2)
