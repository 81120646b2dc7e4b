#!/usr/bin/env python3
"""Real replicas of the small model under a real coordinator: they register, serve, are restarted, adopted, cancelled, and
nothing of them is left behind, also when coordinator, keeper or mpirun are killed.
"""
import json
import os
import pathlib
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from kill_test import BINARY, ROOT  # noqa: E402
from harness import free_port  # noqa: E402

MODEL = ROOT / ".models/SmolLM2-135M-Instruct.Q4_1.gguf"
PATIENCE = 240


class Refused(AssertionError):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Cluster:
    def __init__(self, folder, orphan_seconds=60, slots=2, tls=False, open_files=None):
        self.folder = pathlib.Path(folder)
        self.certificate = self.make_certificate() if tls else None
        self.orphan_seconds = orphan_seconds
        self.slots = slots
        self.open_files = open_files
        self.port = free_port()
        self.process = None
        arguments = ["--max-model-len", "256", "--threads", "1", "--kv-cache-memory-bytes", "33554432"]
        catalogue = {"models": {"smollm2": {"path": str(MODEL), "arguments": arguments},
                                "measured": {"path": str(MODEL), "arguments": [*arguments, "--random-output-len=2"]},
                                "gone": {"path": "/no/such/model.gguf"},
                                "json": {"path": "/no/such/model.gguf", "arguments": ["--log-format", "json"]},
                                "mistyped": {"path": str(MODEL), "arguments": ["--max-modle-len", "256"]},
                                "too-long": {"path": str(MODEL), "arguments": ["--max-model-len", "1000000"]}}}
        (self.folder / "models.json").write_text(json.dumps(catalogue))

    def make_certificate(self):
        """One that no authority has signed, for a name that is not this machine's."""
        certificate = self.folder / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-days", "1", "-subj", "/CN=coordinator", "-addext", "subjectAltName=DNS:coordinator.example",
                        "-keyout", self.folder / "key.pem", "-out", certificate], check=True, capture_output=True)
        return certificate

    def start(self):
        (self.folder / "tmp").mkdir(exist_ok=True)
        tls = ["--ssl-certfile", "certificate.pem", "--ssl-keyfile", "key.pem"] if self.certificate else []
        few = ["prlimit", f"--nofile={self.open_files}"] if self.open_files else []
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*few, BINARY, "coordinator", "--catalogue", self.folder / "models.json", "--store", self.folder / "store.db",
                 "--slots", str(self.slots), "--gpus", "none", "--port", str(self.port), "--orphan-seconds", str(self.orphan_seconds), *tls],
                cwd=self.folder, stdout=subprocess.DEVNULL, stderr=log, env={**os.environ, "TMPDIR": str(self.folder / "tmp")})
        self.wait_ready()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def call(self, method, path, body=None):
        scheme = "https" if self.certificate else "http"
        trust = None
        if self.certificate:
            trust = ssl.create_default_context(cafile=self.certificate)
            trust.check_hostname = False
        request = urllib.request.Request(f"{scheme}://127.0.0.1:{self.port}{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=30, context=trust) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise Refused(error.code, f"{path}: {error.code} {error.read()}") from error
        except OSError:
            return None

    def wait_ready(self):
        def ready():
            try:
                return self.call("GET", "/readyz") is not None
            except Refused as refused:
                if refused.status != 503:
                    raise
                return False
        self.wait_for(ready, "the coordinator to be ready")

    def wait_for(self, condition, what, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"waited in vain for {what}:\n{(self.folder / 'log').read_text()[-3000:]}\n{self.logs()}")

    def wait_state(self, job, state, attempt=None):
        def reached():
            now = self.call("GET", f"/v1/jobs/{job}")
            return now if now and now["state"] == state and attempt in (None, now["attempt"]) else None
        return self.wait_for(reached, f"{job} to be {state}")

    def logs(self):
        return "\n".join(f"{p}:\n{p.read_text()[-1500:]}" for p in self.folder.glob("store.db.jobs/*/*/log"))

    def processes(self, job=None):
        """Process id → command line of all that carries this store's mark, or the job's."""
        found = {}
        mark = f"LLM_DIST_ATTEMPT={self.folder / 'store.db'}:{f'{job}:' if job else ''}".encode()
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                pass
        return found

    def segments(self):
        """The files in shared memory that they have mapped."""
        found = set()
        for pid in self.processes():
            try:
                maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
            except OSError:
                continue
            found |= {pathlib.Path(name) for name in re.findall(r"(/dev/shm/\S+)", maps)}
        return found

    def worlds(self):
        """The folders in shared memory that attempts have."""
        found = set()
        for link in self.folder.glob("store.db.jobs/*/*/world"):
            try:
                found.add(pathlib.Path(os.readlink(link)))
            except FileNotFoundError:
                pass  # its attempt has just ended
        return found

    def cores(self, job):
        """Those that the job's processes may run on: of each process a set, and each set once."""
        return {frozenset(os.sched_getaffinity(pid)) for pid in self.processes(job)}

    def slots_of(self, job):
        return self.call("GET", f"/v1/jobs/{job}/attempts")["data"][-1]["slot_numbers"]

    def endpoint(self, job):
        return self.call("GET", f"/v1/jobs/{job}/attempts")["data"][-1]["endpoint"]

    def models_of(self, job):
        """The names that the job's replica serves, asked with the key that the coordinator shows."""
        attempt = self.call("GET", f"/v1/jobs/{job}/attempts")["data"][-1]
        request = urllib.request.Request(attempt["endpoint"] + "/v1/models",
                                         headers={"Authorization": f"Bearer {attempt['api_key']}"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return [model["id"] for model in json.load(reply)["data"]]

    def is_up(self, endpoint):
        try:
            with urllib.request.urlopen(endpoint + "/readyz", timeout=30) as reply:
                return reply.status == 200
        except OSError:
            return False

    def end(self):
        if self.process.poll() is None:
            self.kill()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


class ReplicasTest(unittest.TestCase):
    def cluster(self, **options):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        cluster = Cluster(folder.name, **options)
        self.addCleanup(cluster.end)
        cluster.start()
        return cluster

    def nothing_left(self, cluster, seconds=PATIENCE):
        cluster.wait_for(lambda: not cluster.processes(), "every process to end", seconds)

    def test_a_replica_lives_through_everything(self):
        cluster = self.cluster()
        job = cluster.call("POST", "/v1/jobs", {"type": "serve", "model": "smollm2"})["id"]
        cluster.wait_state(job, "RUNNING")
        endpoint = cluster.endpoint(job)
        self.assertTrue(cluster.is_up(endpoint))
        self.assertEqual(cluster.models_of(job), ["smollm2"])

        # Another coordinator goes on with it.
        cluster.kill()
        self.assertTrue(cluster.is_up(endpoint))
        cluster.start()
        time.sleep(1)
        self.assertEqual(cluster.call("GET", f"/v1/jobs/{job}")["attempt"], 1)
        self.assertTrue(cluster.is_up(endpoint))

        # The replica itself is killed: a second attempt.
        rank = next(p for p, line in cluster.processes().items() if "serve" in line and "keep" not in line)
        os.kill(rank, signal.SIGKILL)
        cluster.wait_state(job, "RUNNING", attempt=2)

        # Its keeper is killed: nothing survives it, a third attempt.
        keeper = next(p for p, line in cluster.processes().items() if "keep" in line)
        os.kill(keeper, signal.SIGKILL)
        cluster.wait_state(job, "RUNNING", attempt=3)
        cluster.wait_for(lambda: len(cluster.processes()) == 2, "all of the second attempt to be gone")

        cluster.call("POST", f"/v1/jobs/{job}/cancel")
        cluster.wait_state(job, "CANCELLED")
        self.nothing_left(cluster)

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one core")
    def test_replicas_at_once_have_cores_of_their_own(self):
        cluster = self.cluster()

        def start(**more):
            job = cluster.call("POST", "/v1/jobs", {"type": "serve", "model": "smollm2", **more})["id"]
            cluster.wait_state(job, "RUNNING")
            return job

        def end(job):
            cluster.call("POST", f"/v1/jobs/{job}/cancel")
            cluster.wait_state(job, "CANCELLED")

        first, second = start(), start()
        self.assertEqual((cluster.slots_of(first), cluster.slots_of(second)), ([0], [1]))
        (of_first,), (of_second,) = cluster.cores(first), cluster.cores(second)
        self.assertFalse(of_first & of_second)
        self.assertEqual(of_first | of_second, os.sched_getaffinity(0))
        self.assertEqual(os.sched_getaffinity(cluster.process.pid), os.sched_getaffinity(0))
        self.assertEqual(cluster.call("GET", "/v1/overview")["slots"], {"total": 2, "used": 2})

        # Another coordinator knows which the one that goes on has.
        cluster.kill()
        cluster.start()
        end(first)
        third = start()
        self.assertEqual(cluster.slots_of(third), [0])
        self.assertEqual(cluster.cores(third), {of_first})
        self.assertEqual(cluster.cores(second), {of_second})

        # Ranks share what their world has.
        end(second)
        end(third)
        pair = start(tp=2)
        ranks = [os.sched_getaffinity(p) for p, line in cluster.processes(pair).items() if line[1] == "serve"]
        self.assertEqual(len(ranks), 2)
        self.assertFalse(ranks[0] & ranks[1])
        end(pair)
        self.nothing_left(cluster)

    def test_clients_that_say_nothing_end_no_replica(self):
        cluster = self.cluster(open_files=128)
        self.assertIn("connections at a time", (cluster.folder / "log").read_text())
        job = cluster.call("POST", "/v1/jobs", {"type": "serve", "model": "smollm2"})["id"]
        cluster.wait_state(job, "RUNNING")
        before = cluster.processes().keys()
        clients = []
        for _ in range(200):
            clients.append(socket.create_connection(("127.0.0.1", cluster.port), timeout=30))
        time.sleep(4)  # many looks, some probes
        for client in clients:
            client.close()
        self.assertEqual(cluster.processes().keys(), before)
        cluster.wait_ready()  # it counts them until it has read that they are gone
        self.assertEqual(cluster.call("GET", f"/v1/jobs/{job}")["attempt"], 1)
        cluster.call("POST", f"/v1/jobs/{job}/cancel")
        cluster.wait_state(job, "CANCELLED")
        self.nothing_left(cluster)

    def test_a_coordinator_without_descriptors_ends_no_replica(self):
        cluster = self.cluster()
        job = cluster.call("POST", "/v1/jobs", {"type": "serve", "model": "smollm2"})["id"]
        cluster.wait_state(job, "RUNNING")
        before = cluster.processes().keys()
        limit = resource.prlimit(cluster.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(cluster.process.pid, resource.RLIMIT_NOFILE, (0, limit[1]))
        time.sleep(4)  # many looks, some probes
        resource.prlimit(cluster.process.pid, resource.RLIMIT_NOFILE, limit)
        self.assertIsNone(cluster.process.poll())
        self.assertEqual(cluster.processes().keys(), before)
        self.assertEqual(cluster.call("GET", f"/v1/jobs/{job}")["attempt"], 1)
        self.assertEqual((cluster.folder / "log").read_text().count("cannot be told whether"), 1)
        cluster.call("POST", f"/v1/jobs/{job}/cancel")
        cluster.wait_state(job, "CANCELLED")
        self.nothing_left(cluster)

    def test_two_ranks_under_mpirun(self):
        cluster = self.cluster()
        job = cluster.call("POST", "/v1/jobs", {"type": "serve", "model": "smollm2", "tp": 2})["id"]
        folders = []

        def running(attempt):
            cluster.wait_state(job, "RUNNING", attempt)
            # Keeper, mpirun, two ranks.
            cluster.wait_for(lambda: len(cluster.processes()) <= 4, "all of the attempt before to be gone")
            self.assertEqual([f for f in folders if f.exists()], [], "shared memory of attempts that have ended")
            folders.append(self.world_folder(cluster, job, attempt))
            return cluster.processes()

        def kill(pids):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it ended with its mpirun

        kill(p for p, line in running(1).items() if line[0].endswith("mpirun"))
        kill(p for p, line in running(2).items() if line[1] != "keep")
        kill(running(3))
        world = running(4)
        cluster.kill()
        kill(world)
        cluster.start()
        running(5)
        cluster.call("POST", f"/v1/jobs/{job}/suspend")
        cluster.wait_state(job, "SUSPENDED")
        self.nothing_left(cluster)
        self.assertEqual([f for f in folders if f.exists()], [])

    def world_folder(self, cluster, job, attempt):
        """Where all that the ranks share by name stands."""
        folder = pathlib.Path(os.readlink(cluster.folder / f"store.db.jobs/{job}/{attempt}/world"))
        self.assertEqual(folder.stat().st_mode & 0o777, 0o700)
        self.assertEqual([name for name in cluster.segments() if name.exists() and folder not in name.parents], [])
        self.assertTrue(any("segment" in name.name for name in folder.iterdir()), "the ranks share nothing there")
        return folder

    def test_open_requests_are_answered_before_the_end(self):
        cluster = self.cluster()
        job = cluster.call("POST", "/v1/jobs", {"type": "serve", "model": "smollm2", "tp": 2,
                                                "max_model_len": 1024})["id"]
        cluster.wait_state(job, "RUNNING")
        attempt = cluster.call("GET", f"/v1/jobs/{job}/attempts")["data"][-1]

        def ask(max_tokens):
            body = {"model": "smollm2", "prompt": "Once", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
            return urllib.request.urlopen(urllib.request.Request(
                attempt["endpoint"] + "/v1/completions", data=json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {attempt['api_key']}", "Content-Type": "application/json"}),
                timeout=PATIENCE)

        begin = time.monotonic()
        ask(30).read()
        seconds_per_token = (time.monotonic() - begin) / 30
        # Longer than mpirun lets a rank live that it ends, and far less than the half minute that it may take.
        with ask(min(1000, max(1, int(4 / seconds_per_token)))) as reply:
            self.assertTrue(reply.readline().startswith(b"data: "))
            cluster.call("POST", f"/v1/jobs/{job}/cancel")
            lines = [line for line in reply.read().split(b"\n") if line]
        self.assertEqual(lines[-1], b"data: [DONE]")
        self.assertEqual(json.loads(lines[-2][6:])["choices"][0]["finish_reason"], "length")
        cluster.wait_state(job, "CANCELLED")
        self.assertEqual(cluster.call("GET", f"/v1/jobs/{job}/attempts")["data"][-1]["exit_code"], 0)
        self.nothing_left(cluster)

    def test_a_replica_trusts_the_certificate_of_its_own_coordinator(self):
        cluster = self.cluster(tls=True)
        job = cluster.call("POST", "/v1/jobs", {"type": "serve", "model": "smollm2"})["id"]
        cluster.wait_state(job, "RUNNING")
        self.assertEqual(cluster.models_of(job), ["smollm2"])

    def test_without_a_coordinator_replicas_end(self):
        cluster = self.cluster(orphan_seconds=2)
        job = cluster.call("POST", "/v1/jobs", {"type": "serve", "model": "smollm2"})["id"]
        cluster.wait_state(job, "RUNNING")
        cluster.kill()
        self.nothing_left(cluster)

    def test_what_is_refused_fails_at_once_and_says_why(self):
        cluster = self.cluster()
        for body, words in (({"type": "serve", "model": "gone"}, "/no/such/model.gguf"),
                            ({"type": "serve", "model": "gone", "tp": 2}, "/no/such/model.gguf"),
                            ({"type": "serve", "model": "json"}, "/no/such/model.gguf"),
                            ({"type": "serve", "model": "mistyped", "tp": 2}, "--max-modle-len"),
                            ({"type": "serve", "model": "too-long"}, "1000000"),
                            ({"type": "bench", "model": "gone", "bench": "latency"}, "/no/such/model.gguf")):
            with self.subTest(body=body):
                job = cluster.wait_state(cluster.call("POST", "/v1/jobs", body)["id"], "FAILED", attempt=1)
                self.assertEqual(job["reason"], "refused")
                self.assertRegex(job["message"], r"^exit code \d+: ")
                self.assertIn(words, job["message"])

    def test_who_waits_reads_why_it_failed(self):
        cluster = self.cluster()
        done = subprocess.run([BINARY, "submit", "serve", "gone", "--wait", "--url", f"http://127.0.0.1:{cluster.port}"],
                              capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"^job-1: FAILED refused: exit code \d+: .*/no/such/model\.gguf")

    def test_a_bench_leaves_its_result(self):
        cluster = self.cluster()
        job = cluster.call("POST", "/v1/jobs", {"type": "bench", "model": "measured", "bench": "latency",
                                                "batch": "1", "input_len": 8, "output_len": 4})["id"]
        cluster.wait_state(job, "SUCCEEDED")
        result = json.loads((cluster.folder / f"store.db.jobs/{job}/1/result.json").read_text())
        self.assertTrue(result)
        # A warm-up and three runs, of one sequence of four tokens.
        self.assertEqual(cluster.call("GET", f"/v1/jobs/{job}/attempts")["data"][-1]["progress"],
                         {"done": 16, "total": 16})
        table = subprocess.run([BINARY, "jobs", "--url", f"http://127.0.0.1:{cluster.port}"], check=True,
                               capture_output=True, text=True).stdout
        self.assertIn("[##########] 16/16", table)
        for path in [*cluster.folder.glob("store.db*"), *cluster.folder.glob(f"store.db.jobs/{job}/1/*")]:
            self.assertEqual(path.lstat().st_mode & 0o077 if not path.is_symlink() else 0, 0, path)
        self.nothing_left(cluster)


if __name__ == "__main__":
    if not os.path.exists(BINARY) or not MODEL.exists():
        sys.exit(77)
    unittest.main(verbosity=2)
