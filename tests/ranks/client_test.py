"""`chat` and `bench serve` as their users run them: against a server, and with a model of their own."""
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest

import harness

SMALL = ["--kv-cache-memory-bytes", 64 << 20, "--max-model-len", 512, "--threads", 1]
QUESTION = "What is the capital of France?\n"
LOAD = ["--random-input-len", 12, "--random-output-len", 6]
STATISTICS = ["mean", "median", "std", "p90", "p99"]
LATENCIES = ["ttft", "tpot", "itl", "e2el"]


def run_with_input(arguments, text, np=None, env=None):
    command = [*(harness.mpirun(np) if np else []), harness.binary(), *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})})


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, arguments):
        self.process_id, self.fd = pty.fork()
        if self.process_id == 0:
            os.execv(harness.binary(), [harness.binary(), *map(str, arguments)])
        self.text = ""

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, text, limit_s=120):
        """Reads until `text` comes, and forgets what came up to there."""
        deadline = time.monotonic() + limit_s
        while text not in self.text:
            if not select.select([self.fd], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"{text!r} is not in {self.text!r}")
            try:
                self.text += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(f"ended before {text!r} came: {self.text!r}") from None
        before, _, self.text = self.text.partition(text)
        return before

    def wait_end(self, limit_s=30):
        deadline = time.monotonic() + limit_s
        while (status := os.waitpid(self.process_id, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(self.process_id, signal.SIGKILL)
                os.waitpid(self.process_id, 0)
                raise AssertionError(f"still runs after {limit_s} s: {self.text!r}")
            time.sleep(0.02)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status[1])


class WithServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        harness.needs_serve()
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.keys = pathlib.Path(cls.folder.name) / "keys"
        cls.keys.write_text("a-secret-key\n")
        cls.server = harness.Server(1, harness.smollm(), ["--api-key-file", cls.keys, *SMALL])
        cls.addClassCleanup(cls.server.__exit__, None, None, None)
        cls.server.wait_ready()
        cls.url = "http://%s:%d" % cls.server.address
        cls.access = ["--base-url", cls.url + "/v1/", "--api-key-file", cls.keys]

    def bench(self, *arguments):
        result = pathlib.Path(self.folder.name) / "result.json"
        done = harness.run(["bench", "serve", *self.access, *LOAD, "--save-result", result, *arguments], timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        return json.loads(result.read_text()), done

    def test_bench_serve_reports_what_the_server_did(self):
        for endpoint in ("completions", "chat"):
            with self.subTest(endpoint=endpoint):
                report, done = self.bench("--num-prompts", 5, "--max-concurrency", 2, "--endpoint", endpoint)
                self.assertEqual((report["completed"], report["failed"], report["errors"]), (5, 0, {}))
                self.assertEqual(report["total_output_tokens"], 30)
                if endpoint == "completions":
                    self.assertEqual(report["total_input_tokens"], 60)
                self.assertEqual((report["model"], report["prompts"]), ("m", "random token ids"))
                self.assertEqual((report["request_rate"], report["max_concurrency"]), ("inf", 2))
                self.assertEqual(report["peak_concurrency"], 2)
                for latency in LATENCIES:
                    for statistic in STATISTICS:
                        self.assertGreaterEqual(report[f"{statistic}_{latency}_ms"], 0)
                    # Tokens that are read together have no time between them: the median may be 0.
                    self.assertGreater(report[f"mean_{latency}_ms"], 0)
                self.assertAlmostEqual(report["output_throughput"], 30 / report["duration_seconds"], places=6)
                self.assertAlmostEqual(report["request_throughput"], 5 / report["duration_seconds"], places=6)
                self.assertIn("time to first token", done.stdout)
                self.assertEqual(done.stderr, "", "no progress bar without a terminal")

    def test_a_sweep_has_a_row_a_rate_and_a_plot(self):
        plot = pathlib.Path(self.folder.name) / "plot.svg"
        report, done = self.bench("--num-prompts", 3, "--request-rate", "20,inf", "--plot", plot)
        self.assertEqual([row["request_rate"] for row in report["rows"]], [20, "inf"])
        self.assertEqual([row["completed"] for row in report["rows"]], [3, 3])
        self.assertIn("TPOT median", done.stdout)
        self.assertEqual(plot.read_text().count("<circle"), 8)

    def test_control_c_reports_what_there_is(self):
        result = pathlib.Path(self.folder.name) / "partial.json"
        terminal = Terminal(["bench", "serve", *self.access, *LOAD, "--num-prompts", 100, "--request-rate", 0.2,
                             "--save-result", result])
        terminal.wait_for("1/100")
        terminal.type("\x03")
        terminal.wait_for("interrupted:")
        self.assertEqual(terminal.wait_end(), 130)
        report = json.loads(result.read_text())
        self.assertTrue(report["interrupted"])
        self.assertGreaterEqual(report["completed"], 1)

    def test_a_key_is_needed_and_is_not_kept(self):
        done = harness.run(["bench", "serve", "--base-url", self.url, *LOAD])
        self.assertEqual(done.returncode, 1)
        self.assertIn("API key", done.stderr)
        self.assertEqual(len(harness.our_lines(done.stderr)), 1)
        result = pathlib.Path(self.folder.name) / "kept.json"
        done = harness.run(["bench", "serve", "--base-url", self.url, *LOAD, "--num-prompts", 1, "--save-result", result,
                            "--header", "Authorization: Bearer a-secret-key"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("a-secret-key", result.read_text())

    def test_a_request_that_can_never_run_ends_it_at_once(self):
        done = harness.run(["bench", "serve", *self.access, "--random-input-len", 600])
        self.assertEqual(done.returncode, 1)
        self.assertIn("maximum context length", done.stderr)

    def test_chat_through_a_pipe(self):
        done = run_with_input(["chat", *self.access, "--max-tokens", 12], QUESTION + "/reset\n" + QUESTION)
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = done.stdout.splitlines()
        self.assertEqual(len(answers), 2, done.stdout)
        self.assertIn("Paris", answers[0])
        self.assertEqual(answers[0], answers[1], "nothing is left of the first question")

    def test_chat_on_a_terminal(self):
        terminal = Terminal(["chat", *self.access, "--max-tokens", 300])
        terminal.wait_for("> ")
        terminal.type("/reset\n")
        terminal.wait_for("(the conversation is forgotten)\r\n> ")
        terminal.type("Count from one to one hundred.\\\n")
        terminal.wait_for("… ")
        terminal.type("Write a long story about each number.\n")
        terminal.wait_for("\r\n")  # the echo
        terminal.wait_for(" ")
        terminal.type("\x03")
        terminal.wait_for("\r\n> ")
        terminal.type("\x03")
        self.assertEqual(terminal.wait_end(), 130)


class WithModel(unittest.TestCase):
    def test_the_model_of_this_process_answers(self):
        for np in (None, 2):
            with self.subTest(np=np):
                done = run_with_input(["chat", harness.smollm(), "--max-tokens", 12, *SMALL], QUESTION + "And of Italy?\n", np)
                self.assertEqual(done.returncode, 0, done.stderr)
                answers = done.stdout.splitlines()
                self.assertEqual(len(answers), 2, done.stdout)
                self.assertIn("Paris", answers[0])
                self.assertIn("Rome", answers[1], "the history says what is asked for")
                self.assertEqual(harness.our_lines(done.stderr), [])

    def test_control_c_stops_an_answer_and_a_second_one_ends(self):
        terminal = Terminal(["chat", harness.smollm(), "--max-tokens", 400, *SMALL])
        terminal.wait_for("> ")
        terminal.type("Write a long story about a fox.\n")
        terminal.wait_for("\r\n")
        terminal.wait_for(" ")
        terminal.type("\x03")
        terminal.wait_for("\r\n> ")
        terminal.type("/reset\n")
        terminal.wait_for("(the conversation is forgotten)\r\n> ")
        terminal.type(QUESTION)
        terminal.wait_for("Paris")
        terminal.wait_for("\r\n> ")
        terminal.type("\x03")
        terminal.wait_for("(Ctrl-C again, or /quit, ends)")
        terminal.type("\x03")
        self.assertEqual(terminal.wait_end(), 130)

    def test_a_conversation_that_is_too_long(self):
        done = run_with_input(["chat", harness.smollm(), *SMALL], "word " * 600 + "\n")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"the conversation has \d+ tokens, and the model takes 512: /reset")


class Refusals(unittest.TestCase):
    def test_a_server_that_is_not_there(self):
        for command in (["chat"], ["bench", "serve"]):
            with self.subTest(command=command):
                done = harness.run([*command, "--base-url", "http://127.0.0.1:1"])
                self.assertEqual(done.returncode, 1)
                self.assertEqual(len(harness.our_lines(done.stderr)), 1, done.stderr)
                self.assertIn("cannot connect to 127.0.0.1:1", done.stderr)
                for way_out in ("llm-dist serve MODEL", "--base-url", "--port", "--uds"):
                    self.assertIn(way_out, done.stderr)

    def test_a_coordinator_that_is_not_there(self):
        for command in (["jobs"], ["cancel", "job-1"], ["top", "--once"]):
            with self.subTest(command=command):
                done = harness.run(command, env={"LLM_DIST_COORDINATOR": "http://127.0.0.1:1"})
                self.assertEqual(done.returncode, 1)
                self.assertEqual(len(harness.our_lines(done.stderr)), 1, done.stderr)
                for said in ("cannot connect to 127.0.0.1:1", "llm-dist coordinator", "--url", "LLM_DIST_COORDINATOR"):
                    self.assertIn(said, done.stderr)

    def test_submit_says_that_it_asks_again(self):
        command = [harness.binary(), "submit", "bench", "m", "--url", "http://127.0.0.1:1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            self.assertIn("cannot connect to 127.0.0.1:1", process.stderr.readline())
            self.assertRegex(process.stderr.readline(), r"^asking again for \d+ s$")
            self.assertIsNone(process.poll())
            process.kill()

    def test_a_certificate_that_nobody_vouches_for(self):
        harness.needs_serve()
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = f"{folder}/key.pem", f"{folder}/cert.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                            "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                            "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
            with harness.Server(1, harness.smollm(), ["--ssl-certfile", certificate, "--ssl-keyfile", key, *SMALL]) as server:
                server.wait_listening()
                url = "https://%s:%d" % server.address
                for command in (["chat"], ["bench", "serve"], ["chat", "--model-name", "m"]):
                    with self.subTest(command=command):
                        done = run_with_input([*command, "--base-url", url], QUESTION)
                        self.assertEqual(done.returncode, 1)
                        self.assertRegex(done.stderr, r"the certificate of 127.0.0.1:\d+ is not trusted")
                        self.assertIn("--ssl-ca-certs FILE", done.stderr)
                done = run_with_input(["jobs", "--url", url], "")
                self.assertIn("SSL_CERT_FILE", done.stderr)
                trusting = run_with_input(["jobs", "--url", url], "", env={"SSL_CERT_FILE": certificate})
                self.assertNotIn("not trusted", trusting.stderr)

    def test_a_result_that_cannot_be_written_is_refused_before_the_measurement(self):
        for flag in ("--save-result", "--plot"):
            with self.subTest(flag=flag):
                done = harness.run(["bench", "serve", "--base-url", "http://127.0.0.1:1", flag, "/no/such/folder/x"])
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"{flag} /no/such/folder/x: cannot be written: No such file", done.stderr)
                self.assertNotIn("connect", done.stderr)

    def test_flags_that_exclude_each_other_and_rates_that_are_none(self):
        for arguments in (["chat", "model.gguf", "--base-url", "http://h"], ["chat", "--uds", "/s", "--port", 1],
                          ["bench", "serve", "--request-rate", "fast"], ["bench", "serve", "--request-rate", "0"]):
            with self.subTest(arguments=arguments):
                done = harness.run(arguments)
                self.assertIn(done.returncode, range(100, 114), done.stderr)
                self.assertTrue(re.search(re.escape(str(arguments[-2])), done.stderr), done.stderr)


if __name__ == "__main__":
    harness.main()
