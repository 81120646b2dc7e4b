"""The shipped batch scripts and srun, in a Slurm of several slurmd on this machine (cluster.py).

LLM_DIST_FULL=1 adds the long cases: what waits for Slurm's own timers (time limit, node down, restart after a failure), a
rank killed where Slurm lets the others go on, and a batch that is interrupted.
"""
import http.client
import json
import os
import pathlib
import signal
import sys
import threading
import unittest
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ranks"))
import harness  # noqa: E402
from cluster import Cluster, needs_slurm  # noqa: E402

SCRIPTS = harness.ROOT / "launch/slurm"
SMALL = ["--kv-cache-memory-bytes", str(64 << 20), "--max-model-len", "512", "--threads", "1"]
SECRET = {"LLM_DIST_LAUNCH_SECRET": "0123456789abcdef", "MASTER_ADDR": "127.0.0.1"}
DONE = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
long = unittest.skipUnless(harness.FULL, "long: --full")


def setUpModule():
    harness.smollm()
    needs_slurm()
    SlurmTest.cluster = Cluster().__enter__()
    unittest.addModuleCleanup(SlurmTest.cluster.__exit__)


def get(url, path, timeout=30):
    address = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except ConnectionError:
        return None
    finally:
        connection.close()


class Completion(threading.Thread):
    """One request that is open while something happens to the job."""

    def __init__(self, url, tokens):
        super().__init__(daemon=True)
        self.address = urllib.parse.urlparse(url)
        self.tokens, self.answer = tokens, None
        self.start()

    def run(self):
        connection = http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=120)
        body = {"model": "m", "prompt": "Once upon a time", "max_tokens": self.tokens, "ignore_eos": True, "temperature": 0}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            self.answer = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.answer = {"broken": str(error)}
        finally:
            connection.close()


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.site = cls.cluster.dir / "site.sh"
        text = (SCRIPTS / "site.sh").read_text()
        cls.site.write_text(text + f"\nsite_llm_dist={harness.binary()}\nexport MASTER_ADDR=127.0.0.1\n"
                            "site_srun_flags=${TEST_SRUN_FLAGS:-}\n")
        cls.env = {"LLM_DIST_SITE": str(cls.site), "LLM_DIST_SLURM_DIR": str(SCRIPTS), "LLM_DIST_DRAIN_SECONDS": "12"}

    def setUp(self):
        self.work = self.cluster.dir / f"work.{self.id().rpartition('.')[2]}"
        self.work.mkdir()

    def tearDown(self):
        self.cluster.run(["scancel", "-u", "root"], check=False)
        self.cluster.wait(lambda: not self.cluster.run(["squeue", "-h"]).stdout.strip(), 60, "the queue is empty")

    def log(self, job):
        path = self.work / f"llm-dist-{job}.log"
        return path.read_text(errors="replace") if path.exists() else "no log"

    def sbatch(self, script, *arguments, options=(), env=None):
        return self.cluster.submit(*options, SCRIPTS / script, *arguments, cwd=self.work, env={**self.env, **(env or {})})

    def serve(self, *options, flags=("--tp", "2"), env=None):
        job = self.sbatch("serve.sbatch", harness.smollm(), "--port", "0", "--served-model-name", "m", *flags, *SMALL,
                          options=["-N2", "--ntasks-per-node=1", *options], env=env)
        return job, self.wait_ready(job)

    def wait_ready(self, job, limit_s=240):
        url_file = self.work / f"llm-dist-{job}.url"

        def ready():
            if self.cluster.job(job)["JobState"] in DONE:
                raise AssertionError(f"{self.cluster.job(job)}\n{self.log(job)}")
            return url_file.exists() and get(url_file.read_text().strip(), "/readyz") == 200
        self.cluster.wait(ready, limit_s, lambda: f"the server is ready:\n{self.log(job)}")
        return url_file.read_text().strip()

    def rank_pids(self, job):
        """{rank: pid} of the job's ranks."""
        pids = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            env = harness.environment_of(pid)
            if env.get("SLURM_JOB_ID") == job and harness.executable_of(pid) == os.path.realpath(harness.binary()):
                pids[int(env["SLURM_PROCID"])] = int(pid)
        return pids

    def running(self, url, at_least=1):
        self.cluster.wait(lambda: self.requests_running(url) >= at_least, 60, "the request runs")

    def requests_running(self, url):
        address = urllib.parse.urlparse(url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        return next((float(line.split()[1]) for line in text.splitlines()
                     if line.startswith("llm_dist_num_requests_running ")), 0)


class Steps(SlurmTest):
    def doctor(self, *srun):
        done = self.cluster.run(["srun", *srun, harness.binary(), "doctor", "--json"], check=False, timeout=120, cwd=self.work)
        self.assertIn(done.returncode, (0, 3), f"{done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def test_a_step_without_pmix_meets_over_tcp(self):
        self.cluster.env.update(SECRET)
        self.addCleanup(lambda: [self.cluster.env.pop(name) for name in SECRET])
        report = self.doctor("-N2", "-n2", "--mpi=none")
        self.assertEqual((report["launcher"], report["rendezvous"]), ("Slurm step", "tcp"))
        self.assertEqual(len(report["ranks"]), 2)

    def test_a_step_of_one_node_needs_no_secret(self):
        self.assertEqual(self.doctor("-N1", "-n2", "--mpi=none")["rendezvous"], "tcp")

    def test_a_step_with_pmix_uses_mpi(self):
        self.assertEqual(self.doctor("-N2", "-n2", "--mpi=pmix")["rendezvous"], "mpi")

    def test_without_a_secret_two_nodes_are_told_what_to_do(self):
        done = self.cluster.run(["srun", "-N2", "-n2", "--mpi=none", harness.binary(), "doctor"], check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout + done.stderr, "LLM_DIST_LAUNCH_SECRET|host name n1: .*MASTER_ADDR")

    def test_a_batch_scripts_tasks_are_no_step(self):
        script = self.work / "plain.sh"
        script.write_text(f"#!/bin/bash\nenv | grep SLURM_NTASKS\n{harness.binary()} doctor --json\n")
        job = self.cluster.submit("-n4", "-o", self.work / "out", script, cwd=self.work)
        self.cluster.wait_state(job, DONE, 60)
        text = (self.work / "out").read_text()
        self.assertIn("SLURM_NTASKS=4", text)
        report = json.loads(text[text.index("{"):])
        self.assertEqual((report["launcher"], len(report["ranks"])), ("single process", 1))

    def test_a_node_that_would_sit_idle_is_refused(self):
        script = self.work / "idle.sh"
        program = f"{harness.binary()} generate {harness.smollm()} --prompt x --max-tokens 1 {' '.join(SMALL)}"
        script.write_text(f"#!/bin/bash\nsrun -N1 -n1 {program} \"$@\"\n")
        job = self.cluster.submit("-N2", "-o", self.work / "out", script, cwd=self.work)
        self.assertEqual(self.cluster.wait_state(job, DONE, 90)["JobState"], "FAILED")
        self.assertIn("Slurm has allocated 2 nodes, and ranks run on 1 of them", (self.work / "out").read_text())
        job = self.cluster.submit("-N2", "-o", self.work / "allowed", script, "--allow-idle", cwd=self.work)
        self.assertEqual(self.cluster.wait_state(job, DONE, 90)["JobState"], "COMPLETED", (self.work / "allowed").read_text())


class Serve(SlurmTest):
    def test_cancel_lets_running_requests_end(self):
        job, url = self.serve()
        request = Completion(url, 450)  # it is still running when it is seen to run, and when it is cancelled
        self.running(url)
        self.cluster.run(["scancel", job])
        request.join(60)
        reason = request.answer.get("choices", [{}])[0].get("finish_reason")
        self.assertEqual(reason, "length", f"{request.answer}\n{self.log(job)}")
        state = self.cluster.wait_state(job, DONE, 60)
        self.assertEqual(state["JobState"], "CANCELLED")
        self.assertEqual(self.rank_pids(job), {})

    def test_a_killed_rank_ends_all_and_puts_the_job_back(self):
        for kill_flag in ("", "--kill-on-bad-exit=0") if harness.FULL else ("",):
            with self.subTest(flags=kill_flag):
                job, url = self.serve(env={"TEST_SRUN_FLAGS": kill_flag})
                ranks = self.rank_pids(job)
                self.assertEqual(len(ranks), 2)
                exit_ = harness.Exit(ranks[0])
                os.kill(ranks[1], signal.SIGKILL)
                self.assertTrue(exit_.within(5), self.log(job))
                self.cluster.wait(lambda: self.cluster.job(job)["Restarts"] == "1", 60, lambda: self.log(job))
                self.assertIn("rank 1 failed", self.log(job))
                if harness.FULL:
                    self.wait_ready(job, 400)
                self.cluster.run(["scancel", job])
                self.cluster.wait_state(job, DONE, 60)

    @long
    def test_the_time_limit_drains_and_puts_the_job_back(self):
        job, url = self.serve("--time=2", "--signal=B:USR1@60")
        self.cluster.wait(lambda: "draining" in self.log(job), 150, lambda: self.log(job))
        self.cluster.wait(lambda: self.cluster.job(job)["Restarts"] == "1", 60, lambda: self.log(job))
        self.assertIn("time limit", self.log(job))
        self.wait_ready(job, 400)

    @long
    def test_a_node_that_goes_down(self):
        job, url = self.serve()
        ranks = self.rank_pids(job)
        exits = [harness.Exit(pid) for pid in ranks.values()]
        victim = self.cluster.run(["scontrol", "show", "hostnames", self.cluster.job(job)["NodeList"]]).stdout.split()[1]
        self.cluster.kill_node(victim)
        for exit_ in exits:
            self.assertTrue(exit_.within(15), self.log(job))
        self.cluster.wait(lambda: self.cluster.job(job)["Restarts"] == "1", 180, lambda: self.log(job))
        self.cluster.start_node(victim)


class Generate(SlurmTest):
    @long
    def test_a_batch_goes_on_where_it_was_interrupted(self):
        count = 24
        prompts = self.work / "in.jsonl"
        prompts.write_text("".join(json.dumps({"custom_id": f"q{i}", "prompt": f"Count from {i}:", "max_tokens": 48,
                                               "ignore_eos": True}) + "\n" for i in range(count)))
        answers = self.work / "out.jsonl"
        arguments = ["generate.sbatch", harness.smollm(), prompts, answers, "--tp", "2", "--max-num-seqs", "2", *SMALL]
        job = self.sbatch(*arguments, options=["-N2"])

        def some():
            return answers.exists() and answers.read_text().count("\n") >= 4 or self.cluster.job(job)["JobState"] in DONE
        self.cluster.wait(some, 240, lambda: self.log(job))
        self.cluster.run(["scancel", job])
        self.cluster.wait_state(job, DONE, 60)
        before = answers.read_text()
        self.assertGreaterEqual(before.count("\n"), 4, self.log(job))
        self.assertLess(before.count("\n"), count, "the batch was through too soon to be interrupted")
        job = self.sbatch(*arguments, options=["-N2"])
        self.assertEqual(self.cluster.wait_state(job, DONE, 300)["JobState"], "COMPLETED", self.log(job))
        text = answers.read_text()
        self.assertTrue(text.startswith(before))
        rows = [json.loads(line) for line in text.splitlines()]
        self.assertEqual(sorted(row["custom_id"] for row in rows), sorted(f"q{i}" for i in range(count)))
        self.assertEqual({row["usage"]["completion_tokens"] for row in rows}, {48})


if __name__ == "__main__":
    harness.main()
