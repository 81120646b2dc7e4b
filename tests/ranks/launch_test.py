"""Ranks that no mpirun starts: --nproc-per-node, torchrun's variables; doctor; batches of prompts."""
import fcntl
import http.client
import json
import os
import pathlib
import pty
import signal
import subprocess
import tempfile
import termios
import time
import unittest
import urllib.parse

import harness
from harness import binary, our_lines, run

SMALL = ["--kv-cache-memory-bytes", 64 << 20, "--max-model-len", 512, "--threads", 1]
QUESTION = ["--chat", "--prompt", "What is the capital of France?", "--max-tokens", 12]


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def without_mpi():
    """No module at all: nothing here may need it."""
    return {"LLM_DIST_MODULE_DIR": "/nowhere"}


class OneHost(unittest.TestCase):
    def test_several_ranks_from_one_command(self):
        done = run(["generate", harness.smollm(), *QUESTION, *SMALL, "--nproc-per-node", 3, "--tp", 3], env=without_mpi())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Paris", done.stdout)
        self.assertEqual(done.stdout.count("Paris"), 1)

    def test_every_layout_gives_the_same_text(self):
        prompt = ["--prompt", "Once upon a time", "--max-tokens", 24]
        texts = set()
        for n, layout in ((1, []), (2, ["--pp", 2])):
            done = run(["generate", harness.smollm(), *prompt, *SMALL, "--nproc-per-node", n, *layout])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.strip(), done.stderr)
            texts.add(done.stdout)
        self.assertEqual(len(texts), 1)

    def test_torchruns_variables(self):
        port = harness.free_port()
        processes = []
        for rank in range(2):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            processes.append(subprocess.Popen([binary(), "generate", harness.smollm(), *map(str, [*QUESTION, *SMALL])], env=env,
                                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        (text, _), (nothing, _) = [process.communicate(timeout=120) for process in processes]
        self.assertIn("Paris", text)
        self.assertEqual(nothing, "")
        self.assertEqual([process.returncode for process in processes], [0, 0])

    def test_an_impossible_layout_is_refused_once(self):
        done = run(["generate", harness.smollm(), "--prompt", "x", "--nproc-per-node", 2, "--tp", 3])
        self.assertEqual(done.returncode, 78)
        self.assertEqual(len(our_lines(done.stderr)), 1, done.stderr)

    def test_mistakes_in_the_flags(self):
        for flags, words in ((["--nnodes", 2], "--master-addr"),
                             (["--nnodes", 2, "--node-rank", 2, "--master-addr", "127.0.0.1"], "numbered from 0"),
                             (["--node-rank", 1], "--nnodes"),
                             (["--block-size", 2**62], "--block-size 4611686018427387904: not between 1 and 65536"),
                             (["--nnodes", 2, "--master-addr", "192.0.2.1"], "LLM_DIST_LAUNCH_SECRET")):
            with self.subTest(flags=flags):
                done = run(["generate", harness.smollm(), "--prompt", "x", *flags])
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(words, done.stderr)


def on_its_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does: it would end the ranks of a killed launcher


class Serving(unittest.TestCase):
    def setUp(self):
        harness.smollm()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.log = self.dir / "log"
        self.url_file = self.dir / "url"
        self.terminal, its_end = pty.openpty()
        self.addCleanup(os.close, self.terminal)
        with open(self.log, "wb") as log, open(its_end) as stdin:
            self.launcher = subprocess.Popen(
                [binary(), "serve", harness.smollm(), "--port", "0", "--endpoint-file", str(self.url_file), "--served-model-name", "m",
                 *map(str, SMALL), "--nproc-per-node", "2", "--tp", "2"], stdin=stdin, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=on_its_terminal)
        self.addCleanup(self.end)
        harness.wait_until(lambda: self.launcher.poll() is not None or self.url_file.exists(), harness.STARTUP_S, "it listens")
        self.assertTrue(self.url_file.exists(), self.log.read_text())
        self.url = urllib.parse.urlparse(self.url_file.read_text().strip())
        harness.wait_until(lambda: self.status("/readyz") == 200, harness.STARTUP_S, "it is ready", interval_s=0.1)
        self.ranks = children_of(self.launcher.pid)
        self.assertEqual(len(self.ranks), 2)
        self.exits = [harness.Exit(pid) for pid in self.ranks]

    def end(self):
        try:
            os.killpg(self.launcher.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.launcher.wait(10)

    def connect(self, timeout=10):
        return http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=timeout)

    def status(self, path):
        connection = self.connect()
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def stream(self, prompt, max_tokens):
        """A request whose first token has come."""
        stream = harness.Stream(self, "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": max_tokens,
                                                          "ignore_eos": True})
        self.assertTrue(stream.started.wait(60))
        self.assertEqual((stream.status, stream.failure), (200, None))
        return stream

    def press_control_c(self):
        os.write(self.terminal, b"\x03")  # to the launcher and its ranks, from the kernel

    def gone(self, limit_s):
        return all(exit_.within(limit_s) for exit_ in self.exits)

    def test_sigterm_drains(self):
        self.launcher.send_signal(signal.SIGTERM)
        self.assertEqual(self.launcher.wait(30), 0, self.log.read_text())
        self.assertTrue(self.gone(0))
        self.assertIn("draining", self.log.read_text())

    def test_control_c_of_a_terminal_drains_once(self):
        stream = self.stream("Once", 100)
        self.press_control_c()
        self.assertEqual(stream.wait(60).finish_reason(), "length")
        self.assertEqual(self.launcher.wait(30), 0, self.log.read_text())
        self.assertTrue(self.gone(0))
        self.assertEqual(self.log.read_text().count("draining"), 1, self.log.read_text())

    def test_a_second_control_c_ends_at_once_and_says_so(self):
        self.stream(["Once"] * 16, 500)
        self.press_control_c()
        harness.wait_until(lambda: "draining" in self.log.read_text(), 60, "it drains")
        time.sleep(1.2)  # within a second it would be the same signal, delivered twice
        self.assertIsNone(self.launcher.poll(), self.log.read_text())
        self.press_control_c()
        self.assertEqual(self.launcher.wait(10), 130, self.log.read_text())
        self.assertTrue(self.gone(3))
        self.assertEqual(our_lines(self.log.read_text()), ["llm-dist: ended by a second SIGINT"])

    def test_a_killed_rank_ends_the_others_with_one_line(self):
        os.kill(self.ranks[1], signal.SIGKILL)
        self.assertTrue(self.gone(5), self.log.read_text())
        self.assertIn(self.launcher.wait(10), (70, 137))
        self.assertEqual(len(our_lines(self.log.read_text())), 1, self.log.read_text())
        self.assertFalse(self.url_file.exists())

    def test_a_killed_launcher_takes_its_ranks_along(self):
        self.launcher.kill()
        self.assertTrue(self.gone(5), self.log.read_text())


class Doctor(unittest.TestCase):
    def test_one_process(self):
        done = run(["doctor", "--json", harness.smollm()])
        self.assertIn(done.returncode, (0, 3), done.stdout)
        report = json.loads(done.stdout)
        self.assertEqual(report["rendezvous"], "none")
        checks = {finding["check"] for finding in report["findings"]}
        self.assertLessEqual({"ranks", "mpi", "shm", "memlock", "open files", "memory", "binding", "gpus", "model", "cache"}, checks)

    def test_under_mpirun(self):
        done = run(["doctor", "--json"], np=2)
        report = json.loads(done.stdout[done.stdout.index("{"):])
        self.assertEqual((report["launcher"], report["rendezvous"]), ("Open MPI", "mpi"))
        self.assertIn("Open MPI", report["ranks"][1]["mpi"])
        self.assertTrue(any(f["check"] == "collectives" and f["severity"] == "ok" for f in report["findings"]), done.stdout)

    def test_the_shipped_mpirun_line(self):
        harness.needs_mpirun()
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hosts:
            hosts.write("localhost slots=2\n")
            hosts.flush()
            flags = "--oversubscribe" + (" --allow-run-as-root" if os.geteuid() == 0 else "")
            done = subprocess.run([harness.ROOT / "launch/mpirun.sh", hosts.name, "doctor", "--json"], timeout=120,
                                  env={**os.environ, "LLM_DIST": binary(), "MPIRUN_FLAGS": flags}, capture_output=True, text=True)
        report = json.loads(done.stdout[done.stdout.index("{"):])
        self.assertEqual(len(report["ranks"]), 2, done.stderr)
        # Divided by llm-dist, not bound by mpirun.
        self.assertEqual(report["ranks"][0]["cpus"], report["ranks"][1]["cpus"])

    def test_binding_to_one_cpu_is_found(self):
        done = run(["doctor", "--nproc-per-node", 2], prefix=["taskset", "-c", "0"])
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertRegex(done.stdout, r"warning\s+binding")
        self.assertIn("→", done.stdout)

    def test_a_model_that_is_not_there(self):
        done = run(["doctor", "/no/such/model"])
        self.assertEqual(done.returncode, 4, done.stdout)
        self.assertRegex(done.stdout, r"error\s+model\s+/no/such/model cannot be read")

    def test_a_limit_of_files(self):
        done = run(["doctor"], prefix=["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"])
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("256 open files", done.stdout)


class Batch(unittest.TestCase):
    def setUp(self):
        harness.smollm()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.input = pathlib.Path(folder.name) / "in.jsonl"
        self.output = pathlib.Path(folder.name) / "out.jsonl"

    def command(self, *more):
        return ["generate", harness.smollm(), "--input-file", self.input, "--output-file", self.output, *SMALL, *more]

    def rows(self):
        return {row["index"]: row for row in map(json.loads, self.output.read_text().splitlines())}

    def test_lines_of_every_kind(self):
        lines = [{"prompt": "The capital of France is", "max_tokens": 4},
                 {"custom_id": "chat", "messages": [{"role": "user", "content": "What is the capital of France?"}]},
                 "not json",
                 {"prompt": "x", "max_token": 3},
                 {"prompt": "x", "messages": []},
                 {"prompt": "x", "max_tokens": "3"},
                 {"prompt": "word " * 600, "max_tokens": 4},
                 {"prompt": "Once", "ignore_eos": True, "max_tokens": 7, "seed": -1},
                 {"prompt": "Once", "max_tokens": (1 << 32) + 1},
                 {"prompt": "Once", "top_k": -(1 << 63)}]
        self.input.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        done = run(self.command("--max-tokens", 12))
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows()
        self.assertEqual(sorted(rows), list(range(len(lines))))
        self.assertIn("Paris", rows[0]["text"])
        self.assertIn("Paris", rows[1]["text"])
        self.assertEqual(rows[1]["custom_id"], "chat")
        self.assertEqual(rows[7]["usage"]["completion_tokens"], 7)
        for index, words in ((2, "no JSON object"), (3, "max_tokens"), (4, "either prompt or messages"), (5, "max_tokens"),
                             (6, "this model's maximum context length is"), (8, "max_tokens is out of range"),
                             (9, "top_k is out of range")):
            self.assertIn(words, rows[index]["error"]["message"])
        self.assertIn("10 lines answered (7 of them refused), 0 before", done.stderr)
        before = self.output.read_text()
        again = run(self.command())
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(self.output.read_text(), before)

    def test_lines_without_room_for_what_they_ask(self):
        model_len = dict(zip(SMALL[::2], SMALL[1::2]))["--max-model-len"]
        lines = [{"prompt": "Once", "max_tokens": model_len},
                 {"prompt": "Once", "max_tokens": model_len - 1, "ignore_eos": True},
                 {"prompt": "Once", "ignore_eos": True},
                 {"prompt": "The capital of France is", "max_tokens": 4}]
        self.input.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = run(self.command("--max-tokens", 4 * model_len))
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows()
        # A line's own max_tokens, as the server has it; that of the flag gives way, which is said once.
        message = rows[0]["error"]["message"]
        self.assertIn(f"maximum context length is {model_len} tokens; you requested {model_len + 1} tokens (1 in the prompt, "
                      f"{model_len} in the completion)", message)
        self.assertEqual([rows[i]["usage"]["completion_tokens"] for i in (1, 2, 3)], [model_len - 1, model_len - 1, 4])
        self.assertIn("4 lines answered (1 of them refused), 0 before", done.stderr)
        warnings = [line for line in done.stderr.splitlines() if f"--max-tokens {4 * model_len}: " in line]
        self.assertEqual(len(warnings), 1, done.stderr)
        self.assertIn(f"1 answer was cut at --max-model-len {model_len}", warnings[0])

    def test_lines_whose_template_takes_too_long_are_left_for_the_next_time(self):
        template = self.input.with_name("template")
        template.write_text("{% if messages[0].content == 'slow' %}{% set x = 'ab' * 2000000 %}{% for j in range(3) %}"
                            "{% for i in range(6000) %}{% set y = x | upper | lower %}{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}")
        # The last of them waits until another one's render, which nobody awaits any more, has ended.
        contents = ["Once", "slow", "slow", "slow", "slow", "Once", "x" * (1 << 20)]
        self.input.write_text("".join(json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 4}) + "\n"
                                      for content in contents))
        done = run(self.command("--chat-template", template))
        self.assertEqual(done.returncode, 75, done.stderr)
        rows = self.rows()
        self.assertEqual(sorted(rows), [0, 5, 6], rows)
        self.assertEqual(rows[5]["text"], rows[0]["text"])
        self.assertIn("is not rendered, the most is", rows[6]["error"]["message"])
        self.assertIn("3 lines answered (1 of them refused), 0 before; 4 left: run it again", done.stderr)

    def test_an_output_that_cannot_be_written_is_refused_before_loading(self):
        self.input.write_text('{"prompt": "x"}\n')
        for ranks in (1, 2):
            for place in ("/no/such/folder/out.jsonl", "/tmp"):
                with self.subTest(ranks=ranks, place=place):
                    self.output = place
                    done = run(self.command("--nproc-per-node", ranks))
                    self.assertEqual(done.returncode, 78, done.stderr)
                    self.assertEqual(len(our_lines(done.stderr)), 1, done.stderr)
                    self.assertIn(f"llm-dist: --output-file {place}: ", done.stderr)
                    self.assertNotIn("loading weights", done.stderr)

    def test_an_output_that_another_process_writes_is_left_to_it(self):
        self.input.write_text('{"prompt": "x"}\n')
        self.output.write_text("")
        with self.output.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            done = run(self.command("--nproc-per-node", 2))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(our_lines(done.stderr), [f"llm-dist: --output-file {self.output} is being written by another process"])
        self.assertNotIn("loading weights", done.stderr)

    def test_a_signal_keeps_what_is_done_and_the_rest_follows(self):
        count = 16
        self.input.write_text("".join(json.dumps({"prompt": f"Count from {i}:", "max_tokens": 64, "ignore_eos": True}) + "\n"
                                      for i in range(count)))
        command = [binary(), *map(str, self.command("--max-num-seqs", 2, "--nproc-per-node", 2, "--pp", 2))]
        for _ in range(5):
            self.output.unlink(missing_ok=True)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                       text=True)
            harness.wait_until(lambda: self.output.exists() and self.output.read_text().count("\n") >= 2, 120, "two answers")
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            if process.returncode != 0:  # otherwise it had all answers before the signal came
                break
        self.assertEqual(process.returncode, 75, errors)
        before = self.rows()
        self.assertLess(len(before), count)
        done = run(self.command())
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows()
        self.assertEqual(sorted(rows), list(range(count)))
        self.assertEqual({row["usage"]["completion_tokens"] for row in rows.values()}, {64})
        for index, row in before.items():
            self.assertEqual(rows[index], row)


if __name__ == "__main__":
    harness.main()
