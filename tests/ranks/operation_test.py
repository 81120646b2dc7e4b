"""Running a server: draining, logs, queue limits, metrics of every rank, flags in a file, uneven stages."""
import contextlib
import json
import os
import pathlib
import re
import signal
import tempfile
import time
import unittest

import harness
from harness import our_lines, run

SMALL = ["--kv-cache-memory-bytes", 128 << 20, "--max-model-len", 2048]
KEY = "sk-operation-Secret1"
PROMPT = "Once upon a time Pr0mptMarker"
# What names.md promises to dashboards.
METRICS = """num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total generation_tokens_total
num_preemptions_total prefix_cache_queries_total prefix_cache_hits_total time_to_first_token_seconds_count
inter_token_latency_seconds_count e2e_request_latency_seconds_count request_queue_time_seconds_count
request_prefill_time_seconds_count request_decode_time_seconds_count request_success_total step_time_seconds_count
collective_time_seconds_count pipeline_bubble_fraction rank_step_skew_seconds build_info""".split()


def completion(tokens, **more):
    return {"model": "m", "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}


def send(server, method, path, body=None, headers=()):
    """(status, headers, text)"""
    connection = server.connect(60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), dict(headers))
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def code_of(text):
    return json.loads(text)["error"]["code"]


class Draining(unittest.TestCase):
    def setUp(self):
        harness.needs_serve()

    def held_stream(self, server, other_rank):
        """A stream in the middle: another rank is stopped, until whoever calls lets it go on."""
        for _ in range(5):
            stream = server.stream("/v1/completions", completion(400))
            self.assertTrue(stream.started.wait(60))
            os.kill(other_rank, signal.SIGSTOP)
            if server.metric("num_requests_running") == 1:
                return stream
            os.kill(other_rank, signal.SIGCONT)
            stream.wait(60)
        self.fail("each stream ended before the rank was stopped")

    def test_a_drained_server_finishes_what_runs_and_takes_nothing_new(self):
        with harness.Server(2, harness.smollm(), [*SMALL, "--shutdown-timeout", 60]) as server:
            server.wait_ready()
            other_rank = server.wait_ranks()[1]
            stream = self.held_stream(server, other_rank)
            status, _, text = send(server, "POST", "/admin/drain")
            self.assertEqual((status, json.loads(text)), (202, {"status": "draining"}))
            for method, path, body in (("GET", "/readyz", None), ("GET", "/health", None),
                                       ("POST", "/v1/completions", completion(1)), ("POST", "/tokenize", {"prompt": "x"})):
                status, headers, text = send(server, method, path, body)
                self.assertEqual((status, code_of(text)), (503, "draining"), path)
                self.assertGreater(int(headers["Retry-After"]), 0)
            self.assertEqual(send(server, "GET", "/livez")[0], 200)
            self.assertFalse(stream.ended.is_set(), "the stream ended before the server was asked: nothing was tested")
            os.kill(other_rank, signal.SIGCONT)
            stream.wait(120)
            self.assertEqual((stream.finish_reason(), stream.done, stream.error()), ("length", True, None))
            self.assertEqual(server.wait_end(30), 0, server.log())
            self.assertEqual(our_lines(server.log()), [])
            self.assertEqual(server.leftovers(), [])

    def test_the_first_signal_behind_a_request_to_drain_goes_on_draining(self):
        # As Kubernetes ends a pod: a preStop hook that drains, then SIGTERM.
        with harness.Server(2, harness.smollm(), [*SMALL, "--shutdown-timeout", 60], record_exits=True) as server:
            server.wait_ready()
            ranks = server.wait_ranks()
            stream = self.held_stream(server, ranks[1])
            self.assertEqual(send(server, "POST", "/admin/drain")[0], 202)
            server.wait_log("draining")
            time.sleep(1.2)
            os.kill(ranks[0], signal.SIGTERM)
            time.sleep(1)
            self.assertFalse(stream.ended.is_set(), server.log())
            os.kill(ranks[1], signal.SIGCONT)
            stream.wait(120)
            self.assertEqual((stream.finish_reason(), stream.done, stream.error()), ("length", True, None))
            self.assertEqual(server.wait_end(30), 0, server.log())
            self.assertEqual([server.exit_code(rank) for rank in (0, 1)], [0, 0])

    def test_a_second_signal_behind_a_request_to_drain_ends_at_once(self):
        with harness.Server(2, harness.smollm(), [*SMALL, "--shutdown-timeout", 60]) as server:
            server.wait_ready()
            ranks = server.wait_ranks()
            self.held_stream(server, ranks[1])
            rank_0 = harness.Exit(ranks[0])
            self.assertEqual(send(server, "POST", "/admin/drain")[0], 202)
            server.wait_log("draining")
            os.kill(ranks[0], signal.SIGTERM)
            time.sleep(1.2)
            self.assertFalse(rank_0.within(0), server.log())
            os.kill(ranks[0], signal.SIGTERM)
            self.assertTrue(rank_0.within(3), server.log())

    def test_what_outlives_the_shutdown_timeout_is_cut_off(self):
        with harness.Server(2, harness.smollm(), [*SMALL, "--shutdown-timeout", 1]) as server:
            server.wait_ready()
            ranks = server.wait_ranks()
            stream = server.stream("/v1/completions", completion(2000))
            self.assertTrue(stream.started.wait(60))
            begin = time.monotonic()
            os.kill(ranks[0], signal.SIGTERM)
            stream.wait(60)
            self.assertFalse(stream.done)
            self.assertEqual((stream.error() or {}).get("code"), "draining", server.log())
            self.assertEqual(server.wait_end(30), 0, server.log())
            self.assertGreaterEqual(time.monotonic() - begin, 1)
            self.assertEqual(server.leftovers(), [])

    def test_a_second_signal_ends_at_once_and_leaves_no_address(self):
        with harness.Server(2, harness.smollm(), [*SMALL, "--shutdown-timeout", 60]) as server:
            server.wait_ready()
            ranks = server.wait_ranks()
            self.held_stream(server, ranks[1])
            rank_0 = harness.Exit(ranks[0])
            os.kill(ranks[0], signal.SIGTERM)
            server.wait_log("draining")
            self.assertTrue(server.endpoint_file.exists())
            time.sleep(1.2)  # within a second it would be the same signal, delivered twice
            os.kill(ranks[0], signal.SIGTERM)
            self.assertTrue(rank_0.within(3), server.log())
            self.assertFalse(server.endpoint_file.exists())


class Logs(unittest.TestCase):
    def test_json_without_prompts_answers_or_keys(self):
        harness.needs_serve()
        with tempfile.TemporaryDirectory() as folder:
            key_file = pathlib.Path(folder) / "keys"
            key_file.write_text(KEY + "\n")
            flags = [*SMALL, "--log-format", "json", "--log-level", "debug", "--api-key-file", key_file]
            with harness.Server(2, harness.smollm(), flags) as server:
                server.wait_ready()
                right = {"Authorization": "Bearer " + KEY}
                given = {**right, "X-Request-Id": "mine-1"}
                status, headers, text = send(server, "POST", "/v1/completions", completion(16), given)
                self.assertEqual((status, headers["X-Request-Id"]), (200, "mine-1"))
                answer = json.loads(text)["choices"][0]["text"]
                send(server, "POST", "/v1/completions", {PROMPT: PROMPT}, right)
                send(server, "POST", "/tokenize", {"prompt": PROMPT}, {**right, "X-Request-Id": KEY})
                send(server, "GET", f"/{PROMPT.split()[-1]}?{KEY}", None, {"Authorization": KEY})
                send(server, "POST", "/admin/drain", None, right)
                self.assertEqual(server.wait_end(60), 0, server.log())
                log = server.log()
        lines = [json.loads(line) for line in log.splitlines()]
        for line in lines:
            self.assertLessEqual({"ts", "level", "message"}, set(line))
            self.assertRegex(line["ts"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertIn(0, {line.get("rank") for line in lines})
        of_request = [line["message"] for line in lines if line.get("request_id") == "mine-1"]
        self.assertRegex(of_request[-1], r"^POST /v1/completions 200: \d+ prompt tokens, 16 tokens, first after ")
        for secret in (KEY, "Pr0mptMarker", answer.strip()):
            self.assertNotIn(secret, log)

    def test_a_refusal_is_a_line_of_json_too(self):
        done = run(["serve", "/no/such/model.gguf", "--port", 0, "--log-format", "json"])
        self.assertEqual(done.returncode, 78)
        last = json.loads(done.stderr.splitlines()[-1])
        self.assertEqual(last["level"], "error")
        self.assertIn("/no/such/model.gguf", last["message"])


class Queue(unittest.TestCase):
    def test_requests_and_tokens_that_wait_are_bounded(self):
        harness.needs_serve()
        for flag, limit in (("--max-num-queued-reqs", 1), ("--max-num-queued-tokens", 12)):
            with self.subTest(flag=flag), harness.Server(1, harness.smollm(), [*SMALL, "--max-num-seqs", 1, flag, limit]) as server:
                server.wait_ready()
                for _ in range(3):
                    running = server.stream("/v1/completions", completion(1900))
                    self.assertTrue(running.started.wait(60))
                    waiting = server.stream("/v1/completions", completion(4))
                    harness.wait_until(lambda: running.ended.is_set() or server.metric("num_requests_waiting") == 1, 60,
                                       "one request waits")
                    status, headers, text = send(server, "POST", "/v1/completions", completion(4))
                    if not running.ended.is_set():
                        break
                    waiting.wait(120)  # the first one was through too soon
                self.assertFalse(running.ended.is_set(), "refused at once, not when there is room again")
                self.assertEqual((status, code_of(text)), (503, "queue_full"), text)
                self.assertGreater(int(headers["Retry-After"]), 0)
                self.assertGreater(server.metric("requests_refused_total"), 0)
                running.cancel_after = 1  # whoever runs leaves, and the one that waits gets its turn
                self.assertTrue(waiting.wait(120).done)
                self.assertEqual(send(server, "POST", "/v1/completions", completion(2))[0], 200)


class Connections(unittest.TestCase):
    """As many as the limit of open files leaves room for, which is the hard one; the others are told so."""

    def answers(self, ulimit, count):
        """Statuses of /livez on connections that stay open."""
        harness.needs_serve()
        limited = ["sh", "-c", f'ulimit {ulimit} && exec "$@"', "sh"]
        with harness.Server(1, harness.smollm(), SMALL, mpi_options=limited) as server, contextlib.ExitStack() as open_ones:
            server.wait_ready()
            statuses = []
            for _ in range(count):
                connection = open_ones.enter_context(contextlib.closing(server.connect(20)))
                connection.request("GET", "/livez")
                response = connection.getresponse()
                response.read()
                statuses.append(response.status)
            return statuses, server.log()

    def test_the_soft_limit_is_no_limit(self):
        statuses, _ = self.answers("-Sn 256", 500)
        self.assertEqual(set(statuses), {200})

    def test_beyond_the_hard_limit_they_are_told(self):
        statuses, log = self.answers("-n 600", 220)
        self.assertEqual(statuses, [200] * 208 + [503] * 12)
        self.assertIn("208 connections at a time", log)


class Meters(unittest.TestCase):
    def check(self, layout, ops, is_sound):
        """`is_sound` looks at the gauges; they are of the last steps, in which a busy machine may have held up one rank."""
        with harness.Server(2, harness.smollm(), [*SMALL, *layout]) as server:
            server.wait_ready()
            for attempt in range(1, 6):
                text = self.after_two_hundred_steps(server, 200 * attempt - 50)
                found = {name: server.metric(name) for name in ("pipeline_bubble_fraction", "rank_step_skew_seconds",
                                                                "step_time_seconds_sum", "step_latency_seconds_sum")}
                if is_sound(found):
                    break
            print(f"  {found}")
            self.assertTrue(is_sound(found), found)
            for name in METRICS:
                self.assertRegex(text, rf"(?m)^llm_dist_{name}[ {{]")
            for rank in (0, 1):
                for op in ops[rank]:
                    self.assertRegex(text, rf'collective_time_seconds_sum\{{rank="{rank}",op="{op}"\}} [0-9.]*[1-9]')

    def after_two_hundred_steps(self, server, steps_in_all):
        """The metrics, once both ranks have told of so many."""
        self.assertTrue(server.stream("/v1/completions", completion(200)).wait().done)
        def told():
            text = server.get("/metrics")[1]
            counts = [re.search(rf'step_time_seconds_count\{{rank="{rank}"\}} (\d+)', text) for rank in (0, 1)]
            return all(count and int(count[1]) > steps_in_all for count in counts) and text
        return harness.wait_until(told, 60, lambda: f"both ranks have told of more than {steps_in_all} steps:\n"
                                                    + server.get("/metrics")[1])

    def test_tensor_parallel(self):
        harness.needs_serve()
        self.check(["--tp", 2, "--pp", 1], [["all_reduce"], ["all_reduce"]],
                   lambda found: found["pipeline_bubble_fraction"] == 0 and found["rank_step_skew_seconds"] < 1)

    def test_pipeline(self):
        harness.needs_serve()
        # One stream: each of two stages idles while the other works.
        self.check(["--tp", 1, "--pp", 2], [["send", "recv"], ["send", "recv"]],
                   lambda found: 0.2 < found["pipeline_bubble_fraction"] < 0.98)


class ConfigFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "flags.toml"

    def plan(self, text, *arguments):
        self.path.write_text(text)
        return run(["plan", *arguments, "--config", self.path])

    def test_flags_come_from_the_file_and_the_command_line_wins(self):
        text = f"""
            # for everybody
            max-model-len = 512
            tp = 3
            [plan]
            model = "{harness.smollm()}"
            pp_layer_split = [20, 10]
            json = true
            [serve]
            port = 9999
            """
        plan = json.loads(self.plan(text).stdout)
        self.assertEqual((plan["tp"], plan["pp"], plan["max_model_len"]), (3, 2, 512))
        plan = json.loads(self.plan(text, "--tensor-parallel-size", 1, "--max-model-len=256").stdout)
        self.assertEqual((plan["tp"], plan["pp"], plan["max_model_len"]), (1, 2, 256))
        done = self.plan(text, "/no/such/model.gguf")
        self.assertIn("/no/such/model.gguf", done.stderr)

    def test_ini_too(self):
        self.path = self.path.with_suffix(".ini")
        done = self.plan(f"; a comment\n[plan]\nmodel={harness.smollm()}\npp=5\njson=true\n")
        self.assertEqual(json.loads(done.stdout)["pp"], 5, done.stderr)

    def test_a_list_takes_no_model_behind_it(self):
        for text in ("pp-layer-split = [20, 10]\n", 'served-model-name = ["a", "b"]\n'):
            command = "plan" if "split" in text else "serve"
            self.path.write_text(text)
            done = run([command, harness.smollm(), "--config", self.path, "--block-size", 0])
            self.assertIn("--block-size", done.stderr)  # and no word of a model that is missing

    def test_mistakes_name_the_nearest(self):
        for text, *words in (("max-modle-len = 3\n", "max-modle-len is no flag of plan", "nearest is max-model-len"),
                             ("[plna]\ntp = 2\n", "plna is no command", "nearest is plan"),
                             ("tp = 2\ntp-size = 3\n", "a second time"),
                             ("help = true\n", "help is no flag")):
            with self.subTest(text=text):
                done = self.plan(text, harness.smollm())
                self.assertEqual(done.returncode, 78)
                self.assertEqual(len(our_lines(done.stderr)), 1, done.stderr)
                for word in words:
                    self.assertIn(word, done.stderr)
        done = run(["plan", harness.smollm(), "--config", "/no/such/flags.toml"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/no/such/flags.toml", done.stderr)

    def test_what_is_no_toml_is_told_with_its_line(self):
        for text in (b"\n[serve\nport = 1\n", b"\nblock-size = none\n", b"\n\x7fELF\x02\xff\x00\n"):
            with self.subTest(text=text):
                self.path.write_bytes(text)
                done = run(["plan", harness.smollm(), "--config", self.path])
                self.assertEqual(done.returncode, 78)
                self.assertRegex(done.stderr, rf"^llm-dist: --config {re.escape(str(self.path))}:2: \S.*\n$")

    def test_a_hash_in_a_name_hides_no_flag_behind_it(self):
        keys = self.path.with_name("no-keys")
        self.path.write_text(f'served-model-name = ["llama#8b", "llama"]\nport = 8101\napi-key-file = "{keys}"\n')
        done = run(["serve", harness.smollm(), "--config", self.path], timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(str(keys), done.stderr)  # which is not there

    def test_a_section_counts_for_the_commands_below_its_own(self):
        text = "[bench]\nbatch = [1]\noutput-len = 4\nnum-prompts = 3\nblock-size = 0\n"
        for command in ("latency", "throughput"):
            self.path.write_text(text)
            done = run(["bench", command, harness.smollm(), "--config", self.path])
            self.assertIn("--block-size", done.stderr)
        self.path.write_text("[bench]\noutput-lne = 4\n")
        done = run(["bench", "latency", harness.smollm(), "--config", self.path])
        self.assertEqual(done.returncode, 78)
        self.assertIn("output-lne is no flag of any bench command; the nearest is output-len", done.stderr)

    def test_a_wrong_value_is_refused_like_a_typed_one(self):
        done = self.plan('block-size = "none"\n', harness.smollm())
        self.assertGreaterEqual(done.returncode, 100)
        self.assertIn("--block-size", done.stderr)

    def test_a_conversation_with_a_server_has_no_use_for_a_models_flags(self):
        self.path.write_text("tp = 4\nmax-model-len = 512\n")
        done = run(["chat", "--config", self.path, "--uds", "/no/such/socket"])
        self.assertIn("cannot connect to /no/such/socket", done.stderr)

    def test_one_rank_speaks(self):
        self.path.write_text("tpp = 2\n")
        done = run(["generate", harness.smollm(), "--config", self.path, "--prompt", "x"], np=2)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("tpp is no flag"), 1, done.stderr)


class LayerSplit(unittest.TestCase):
    def test_the_plan_follows_it(self):
        done = run(["plan", harness.smollm(), "--pp-layer-split", "20,10", "--json"])
        ranks = json.loads(done.stdout)["ranks"]
        self.assertEqual([(r["first_layer"], r["num_layers"]) for r in ranks], [(0, 20), (20, 10)])

    def test_splits_that_do_not_fit(self):
        for flags, message in ((["--pp-layer-split", "20,9"], "adds up to 29 layers, but the model has 30"),
                               (["--pp-layer-split", "20,10", "--pp", 3], "names 2 stages, but there are 3"),
                               (["--pp-layer-split", "30,0"], "pp-layer-split")):
            done = run(["plan", harness.smollm(), *flags])
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(message, done.stderr)

    def test_uneven_stages_answer_the_same(self):
        question = ["--chat", "--prompt", "What is the capital of France?", "--max-tokens", 12, *SMALL]
        done = run(["generate", harness.smollm(), *question, "--pp-layer-split", "22,8"], np=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Paris", done.stdout)


if __name__ == "__main__":
    harness.main()
