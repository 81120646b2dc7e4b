"""The command line: what it says to a mistake, from how many ranks, and what it runs without."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import unittest

import harness
from harness import our_lines, run

SMALL = ["--kv-cache-memory-bytes", 64 << 20, "--max-model-len", 512]
QUESTION = ["--chat", "--prompt", "What is the capital of France?", "--max-tokens", 12]


@contextlib.contextmanager
def memory_cgroup(limit_bytes):
    """The folder of a cgroup with this limit."""
    root = pathlib.Path("/sys/fs/cgroup")
    version_1 = (root / "memory/memory.limit_in_bytes").exists()
    group = root / ("memory" if version_1 else "") / f"llm-dist-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        raise unittest.SkipTest("cannot make a cgroup here") from None
    try:
        limit = group / ("memory.limit_in_bytes" if version_1 else "memory.max")
        if not limit.exists():
            raise unittest.SkipTest("cgroups here do not limit memory")
        limit.write_text(str(limit_bytes))
        yield group
        harness.wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), 10, "the cgroup is empty")
    finally:
        group.rmdir()


class Help(unittest.TestCase):
    def test_help_shows_every_command_and_examples(self):
        done = run(["--help"])
        self.assertEqual(done.returncode, 0)
        for word in ("generate", "bench", "plan", "convert", "doctor", "completion", "mpirun -np"):
            self.assertIn(word, done.stdout)

    def test_each_command_has_help_with_an_example(self):
        for command in (["generate"], ["plan"], ["convert"], ["doctor"], ["bench", "latency"], ["bench", "throughput"],
                        ["bench", "kernels"], ["bench", "load"], ["bench", "comm"], ["submit"], ["jobs"], ["logs"],
                        ["cancel"], ["top"], ["completion"]):
            with self.subTest(command=command):
                done = run([*command, "--help"])
                self.assertEqual(done.returncode, 0)
                self.assertRegex(done.stdout, f"(?s)Examples?:\n.*llm-dist {' '.join(command)}")

    def test_help_lists_what_is_argument_and_flag_once(self):
        done = run(["submit", "--help"])
        self.assertIn("Usage: llm-dist submit [OPTIONS] type model\n", done.stdout)
        for word, help in (("type", "serve or bench"), ("model", "A name in the coordinator's catalogue")):
            self.assertRegex(done.stdout, rf"\n  {word},--{word} TEXT REQUIRED +{help}\n")
            self.assertEqual(done.stdout.count(help), 1, done.stdout)

    def test_version(self):
        done = run(["--version"])
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^llm-dist \d+\.\d+\.\d+\n$")

    def test_a_full_disk_behind_standard_output_is_no_success(self):
        for arguments in (["--help"], ["plan", harness.smollm(), "--json"]):
            with self.subTest(arguments=arguments), open("/dev/full", "w") as full:
                done = subprocess.run([harness.binary(), *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 1)
                self.assertIn("No space left", done.stderr)

    def test_a_closed_standard_input_is_an_empty_one(self):
        script = f"exec {harness.binary()} generate {harness.smollm()} <&-"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the prompt is empty", done.stderr)

    def test_what_is_no_number_is_refused(self):
        for flag in ("--temperature", "--top-p", "--gpu-memory-utilization", "--distributed-timeout-seconds"):
            done = run(["generate", harness.smollm(), flag, "nan"])
            self.assertEqual(done.returncode, 105, done.stderr)
            self.assertIn(flag, done.stderr)

    def test_an_unknown_flag_names_the_nearest(self):
        done = run(["generate", "model.gguf", "--tensor-paralel-size", "2"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--tensor-parallel-size", done.stderr)

    def test_a_flag_of_other_servers_is_said_not_to_be_served(self):
        done = run(["serve", "model.gguf", "--swap-space", "4", "--enable-prefix-caching"])
        self.assertNotEqual(done.returncode, 0)
        for flag in ("--swap-space", "--enable-prefix-caching"):
            self.assertIn(f"{flag} is known from other servers and not served here", done.stderr)

    def test_an_unknown_command_names_the_nearest(self):
        done = run(["genrate", "model.gguf"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Did you mean generate?", done.stderr)
        done = run(["complet", "bash"])
        self.assertRegex(done.stderr, "complet is no command: .*, completion\nDid you mean completion\\?\n")
        done = run(["bench", "latnecy", "model.gguf"])
        self.assertIn("Did you mean latency?", done.stderr)

    def test_what_is_near_nothing_is_no_suggestion(self):
        for arguments, said in ((["frobnicate"], "frobnicate is no command"), (["doctor", "--model", "m"], "--model")):
            with self.subTest(arguments=arguments):
                done = run(arguments)
                self.assertIn(said, done.stderr)
                self.assertNotIn("Did you mean", done.stderr)

    def test_a_value_that_a_flag_does_not_take(self):
        for arguments, said in (
                (["serve", "--port", "abc"], "serve --port abc: not a whole number\n"),
                (["serve", "--port", "99999"], "serve --port 99999: too large"),
                (["serve", "--port", "-1"], "serve --port -1: too small"),
                (["serve", "--tp", "0"], "serve --tp 0: too small"),
                (["serve", "--pp-size", "0"], "serve --pp 0: too small"),
                (["serve", "--threads", "-1"], "serve --threads -1: too small"),
                (["serve", "--max-model-len", "-5"], "serve --max-model-len -5: too small"),
                (["serve", "--kv-cache-memory-bytes", "-1"], "serve --kv-cache-memory-bytes -1: too small"),
                (["serve", "--distributed-timeout-seconds", "0"], "serve --distributed-timeout-seconds 0: too small"),
                (["serve", "--request-timeout", "-4"], "serve --request-timeout -4: too small"),
                (["serve", "--shutdown-timeout", "-4"], "serve --shutdown-timeout -4: too small"),
                (["generate", "--shutdown-timeout", "-4"], "generate --shutdown-timeout -4: too small"),
                (["plan", "--log-level", "loud"], "plan --log-level: loud not in {"),
                (["plan", "--gpus", "0"], "plan --gpus 0: too small"),
                (["jobs", "--limit", "0"], "jobs --limit 0: too small"),
                (["logs", "job-1", "--attempt", "-1"], "logs --attempt -1: too small"),
                (["submit", "bench"], "submit --model is required"),
                (["serve", "--kv-cache-memory-bytes", "64M"], "serve --kv-cache-memory-bytes 64M: not a whole number"),
                (["serve", "--gpu-memory-utilization", "90"], "serve --gpu-memory-utilization 90: not between 0.01 and 1"),
                (["serve", "--port"], "serve --port: its value is missing"),
                (["serve", "m.gguf", "--port=", "--tp=2"], "serve --port: its value is empty"),
                (["serve", "m.gguf", "--port", ""], "serve --port: its value is empty"),
                (["serve", "--tp=", "m.gguf"], "serve --tp: its value is empty"),
                (["serve", "--kv-cache-memory-bytes=", "m.gguf"], "serve --kv-cache-memory-bytes: its value is empty"),
                (["generate", "--temperature=", "0"], "generate --temperature: its value is empty"),
                (["serve", "m.gguf", "--enforce-eager="], "serve --enforce-eager: its value is empty"),
                (["serve", "m.gguf", "--api-key-file=", "--port=0"], "serve --api-key-file: its value is empty"),
                (["plan", "m.gguf", "--device=", "--json"], "plan --device:  not in {"),
                (["generate", "--max-tokens", "0"], "generate --max-tokens 0: too small"),
                (["generate", "--temperature", "x"], "generate --temperature x: not a number"),
                (["bench"], "bench a command is missing: latency, throughput"),
                (["bench", "--tp", "2"], "bench a command is missing in front of --tp: latency, throughput"),
                (["serve", "m.gguf", "--uds", "/tmp/s", "--port", "1"], "serve --port excludes --uds"),
                (["generate", "m.gguf", "--prompt", "x", "--input-file", "/dev/null", "--output-file", "o"],
                 "generate --prompt excludes --input-file"),
                (["generate", "m.gguf", "--chat", "--input-file", "/dev/null", "--output-file", "o"],
                 "generate --input-file excludes --chat"),
                (["chat", "m.gguf", "--port", "8001"], "chat model excludes --port"),
                (["chat", "--tp", "2", "--port", "8001"], "chat --tp requires MODEL, a model of this process"),
                (["bench", "latnecy", "m.gguf"], "bench latnecy is no command: latency, throughput")):
            with self.subTest(arguments=arguments):
                command, text = said.split(" ", 1)
                done = run(arguments)
                self.assertTrue(100 <= done.returncode <= 114, done.returncode)
                self.assertTrue(done.stderr.startswith(f"llm-dist: {text}"), done.stderr)
                self.assertTrue(done.stderr.endswith(f"\nllm-dist {command} --help lists what there is.\n"), done.stderr)

    def test_the_model_may_stand_behind_the_names_it_is_served_by(self):
        for words in (["--served-model-name", "a", "/no/such.gguf"],
                      ["--served-model-name", "a,b", "/no/such.gguf", "--port", "0"],
                      ["--served-model-name", "a", "--served-model-name", "b", "/no/such.gguf"],
                      ["/no/such.gguf", "--served-model-name", "a"]):
            with self.subTest(words=words):
                done = run(["serve", *words])
                self.assertEqual(done.returncode, 78, done.stderr)
                self.assertIn("/no/such.gguf", done.stderr)

    def test_an_empty_value_takes_no_flag_behind_it(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(["plan", harness.smollm(), "--trace-file=", "--json", "--tokenizer=", "--max-model-len=64"],
                       cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["max_model_len"], 64)
            self.assertEqual(os.listdir(folder), [])

    def test_one_rank_speaks_about_the_command_line(self):
        done = run(["generate", "model.gguf", "--no-such-flag"], np=3)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("--no-such-flag"), 1, done.stderr)

    def test_a_flag_of_two_letters_after_one_dash(self):
        done = run(["plan", harness.smollm(), "-tp", "3", "-pp=2", "--json"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r'"tp": 3')
        self.assertRegex(done.stdout, r'"pp": 2')


class Libraries(unittest.TestCase):
    def test_the_program_needs_no_mpi_cuda_or_nccl(self):
        listed = subprocess.run(["readelf", "-d", harness.binary()], capture_output=True, text=True, timeout=60)
        needed = re.findall(r"NEEDED.*\[(.*)\]", listed.stdout)
        self.assertTrue(needed)
        for library in needed:
            self.assertNotRegex(library, r"libmpi|libopen-|libcuda|libnccl")

    def test_one_rank_runs_without_the_mpi_module(self):
        with tempfile.TemporaryDirectory() as empty:
            env = {"LLM_DIST_MODULE_DIR": empty}
            self.assertEqual(run(["--help"], env=env).returncode, 0)
            self.assertEqual(run(["plan", harness.smollm(), "--tp", "2"], env=env).returncode, 0)
            done = run(["generate", harness.smollm(), *QUESTION, *SMALL], env=env)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("Paris", done.stdout)

    def test_two_ranks_without_it_say_what_is_missing(self):
        with tempfile.TemporaryDirectory() as empty:
            done = run(["generate", harness.smollm(), *QUESTION, *SMALL], np=2,
                       mpi_options=["-x", "LLM_DIST_MODULE_DIR"], env={"LLM_DIST_MODULE_DIR": empty})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("need MPI", done.stderr)
        self.assertIn(empty, done.stderr)


class Refusals(unittest.TestCase):
    """Each mistake ends the world with one line, which says what to do."""

    def refused(self, arguments, np, *words, prefix=()):
        done = run(arguments, np=np, prefix=prefix)
        self.assertNotEqual(done.returncode, 0)
        lines = our_lines(done.stderr)
        self.assertEqual(len(lines), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        return done

    def test_a_missing_model(self):
        for np in (None, 2):
            with self.subTest(np=np):
                done = self.refused(["generate", "/no/such/model.gguf", "--prompt", "x"], np, "/no/such/model.gguf")
                self.assertEqual(done.returncode, 78)

    def test_a_damaged_model(self):
        with tempfile.TemporaryDirectory() as folder, open(harness.smollm(), "rb") as model:
            half = pathlib.Path(folder) / "half.gguf"
            half.write_bytes(model.read(50_000_000))
            for np in (None, 2):
                with self.subTest(np=np):
                    done = self.refused(["generate", half, "--prompt", "x", *SMALL], np, "half.gguf")
                    self.assertEqual(done.returncode, 78, done.stderr)

    def test_a_prompt_that_is_no_utf8(self):
        for chat in ([], ["--chat"]):
            with self.subTest(chat=chat):
                done = run(["generate", harness.smollm(), *chat, "--prompt", "caf\udce9", *SMALL], np=None)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("UTF-8", done.stderr)

    def test_a_file_that_is_no_model(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(b"not a model" * 100)
            file.flush()
            self.refused(["generate", file.name, "--prompt", "x"], None, file.name)

    def test_an_impossible_layout_names_those_that_fit(self):
        done = self.refused(["plan", harness.smollm(), "--tp", 10], None, "tp 10 exceeds the model's 9 heads")
        self.assertRegex(done.stderr, r"10 ranks fit as: .*5x2")
        self.refused(["plan", harness.smollm(), "--pp", 31], None, "pp 31 exceeds the model's 30 layers")

    def test_a_layout_that_is_none_or_two(self):
        for flags in (["--layout", "0x0"], ["--layout=-1x1"], ["--layout", "2y2"], ["--tp", 2, "--layout", "1x2"],
                      ["--pp", 1, "--layout", "1x2"]):
            with self.subTest(flags=flags):
                self.refused(["plan", harness.smollm(), *flags], None, "--layout")
        for flags in (["--layout", "1x2"], ["--pp", 2, "--layout", "1x2"]):
            done = run(["plan", harness.smollm(), *flags])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("TP 1 × PP 2", done.stdout)

    def test_plan_tells_a_script_whether_it_fits(self):
        for flags, code, word in ((["--memory", "10MiB"], 3, "the model does not fit"),
                                  (["--memory", "300MiB"], 3, "--max-model-len 8192 does not fit"),
                                  (["--memory", "300MiB", "--max-model-len", 1024], 0, ""),
                                  (["--memory", "300MiB", "--max-model-len", 1024, "--gpu-memory-utilization", 0.6], 3,
                                   "--max-model-len 1024 does not fit"),
                                  (["--memory", "2GiB"], 0, ""), ([], 0, "")):
            with self.subTest(flags=flags):
                done = run(["plan", harness.smollm(), "--threads", 1, *flags])
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                self.assertIn(word, done.stdout)
                self.assertEqual("not fit" in done.stdout, code == 3, done.stdout)
                done = run(["plan", harness.smollm(), "--threads", 1, "--json", *flags])
                self.assertEqual(done.returncode, code, done.stderr)
                json.loads(done.stdout)

    def planned(self, *flags):
        done = run(["plan", harness.smollm(), "--threads", 1, "--json", *flags])
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["ranks"]

    def test_a_step_has_2048_tokens_on_gpus_for_each_rank_of_a_tensor_group(self):
        for flags, tokens in ((["--tp", 1], 2048), (["--tp", 3], 2048), (["--tp", 3, "--device", "cuda"], 6144),
                              (["--pp", 2, "--device", "cuda"], 2048), (["--max-num-seqs", 3000], 3000),
                              (["--no-enable-chunked-prefill", "--max-model-len", 4096], 4096)):
            with self.subTest(flags=flags):
                ranks = self.planned(*flags)
                self.assertEqual(ranks, self.planned(*flags, "--max-num-batched-tokens", tokens))
                self.assertNotEqual(ranks, self.planned(*flags, "--max-num-batched-tokens", 2 * tokens))

    def test_gpus_have_quantized_weights_and_what_is_beside_them_in_16_bits(self):
        cpu, gpu = (self.planned("--device", device)[0] for device in ("cpu", "cuda"))
        self.assertAlmostEqual(gpu["weight_bytes"], 2 * 134_515_008, delta=1 << 20)
        self.assertLess(cpu["weight_bytes"], gpu["weight_bytes"] / 2)
        self.assertEqual(2 * gpu["kv_bytes_per_token"], cpu["kv_bytes_per_token"])

    def test_64_sequences_run_for_each_stage(self):
        for flags, sequences in (([], 64), (["--tp", 3], 64), (["--pp", 3], 192), (["--pp", 3, "--no-async-scheduling"], 64),
                                 (["--pp", 3, "--max-num-batched-tokens", 100], 100)):
            with self.subTest(flags=flags):
                ranks = self.planned(*flags)
                self.assertEqual(ranks, self.planned(*flags, "--max-num-seqs", sequences))
                self.assertNotEqual(ranks, self.planned(*flags, "--max-num-seqs", sequences // 2))

    def test_ranks_have_memory_for_shares_of_the_largest_step(self):
        def of_shares(tokens, dtype="bfloat16", sequence_parallel="auto"):
            def beside_activations(when):
                rank = self.planned("--device", "cuda", "--tp", 3, "--dtype", dtype, "--sequence-parallel", when,
                                    "--max-num-batched-tokens", tokens)[0]
                return rank["fixed_bytes"] - rank["activation_bytes"]
            return beside_activations(sequence_parallel) - beside_activations("off")
        row_bytes, pages = 2 * 576, 4 << 20  # of SmolLM2-135M
        for tokens in (6144, 98304):
            self.assertAlmostEqual(of_shares(tokens), 2 * tokens * row_bytes, delta=pages)
        self.assertAlmostEqual(of_shares(98304, dtype="float32"), 0, delta=pages)
        too_many = 3 * (200 << 10)  # 675 MiB, of which there are 512 at most
        self.assertAlmostEqual(of_shares(too_many), 0, delta=pages)
        self.assertAlmostEqual(of_shares(too_many, sequence_parallel="on"), 2 * (512 << 20), delta=pages)

    def test_memory_that_is_none(self):
        for memory in ("0", "-1", "nan", "1e30TiB", "12XB"):
            with self.subTest(memory=memory):
                done = self.refused(["plan", harness.smollm(), f"--memory={memory}"], None, f"--memory {memory}")
                self.assertEqual(done.returncode, 1)

    def test_a_trace_that_cannot_be_written_is_refused_before_loading(self):
        for flag in ("--trace-file", "--profile"):
            for place in ("/no/such/folder/trace.json", "/tmp"):
                with self.subTest(flag=flag, place=place):
                    done = self.refused(["generate", harness.smollm(), "--prompt", "x", "--nproc-per-node", 2, flag, place, *SMALL],
                                        None, f"{flag} {place}: ")
                    self.assertNotIn("loading weights", done.stderr)
                    self.assertEqual(done.stdout, "")
        for command in (["bench", "latency", harness.smollm(), "--nproc-per-node", 2, *SMALL], ["bench", "comm"],
                        ["bench", "kernels", harness.smollm(), *SMALL]):
            with self.subTest(command=command):
                done = self.refused([*command, "--save-result", "/no/such/folder/result.json"], None,
                                    "--save-result /no/such/folder/result.json: ")
                self.assertNotIn("loading weights", done.stderr)

    def test_flags_that_contradict_each_other_or_leave_no_room(self):
        for flags, *words in ((["--max-num-batched-tokens", 32, "--max-num-seqs", 33], "32 is below --max-num-seqs 33"),
                              (["--no-enable-chunked-prefill", "--max-model-len", 512, "--max-num-batched-tokens", 500],
                               "500 is below --max-model-len 512", "--no-enable-chunked-prefill"),
                              (["--max-model-len", 1], "--max-model-len 1"),
                              (["--max-model-len", 8193], "--max-model-len 8193 exceeds the model's 8192 positions")):
            with self.subTest(flags=flags):
                self.refused(["plan", harness.smollm(), *flags], None, *words)
                self.refused(["generate", harness.smollm(), "--prompt", "x", *flags], 2, *words)

    def test_a_world_of_another_size_than_the_layout(self):
        done = self.refused(["generate", harness.smollm(), "--prompt", "x", "--tp", 3, "--pp", 1], 2, "but 2 were started", "mpirun -np 3")
        self.assertNotIn("loading weights", done.stderr)

    def test_a_model_that_does_not_fit_is_refused_before_loading_with_the_plan(self):
        done = self.refused(["generate", harness.smollm(), "--prompt", "x", "--kv-cache-memory-bytes", 1 << 50], 2,
                            "does not fit", "weights", "--max-model-len")
        self.assertNotIn("loading weights", done.stderr)

    def test_a_pool_below_one_sequence(self):
        self.refused(["generate", harness.smollm(), "--prompt", "x", "--kv-cache-memory-bytes", 1 << 20], 2,
                     "--max-model-len")

    def test_linear_layers_in_fp8_are_planned_by_the_byte(self):
        model = pathlib.Path(__file__).parent.parent / "golden/data/grouped"  # hidden 27, 5 layers, 9 × 16 heads, 50 inner
        linear = [(9 * 16 + 2 * 3 * 16, 27), (27, 9 * 16), (2 * 50, 27), (27, 50)]
        rest = 2 * (131 * 27 + (2 * 5 + 1) * 27)
        done = run(["plan", model, "--quantization", "fp8", "--dtype", "bfloat16", "--json"])
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(done.stdout)
        self.assertEqual(plan["quantization"], "fp8")
        self.assertEqual(plan["ranks"][0]["weight_bytes"], 5 * sum(n * k + 4 * n for n, k in linear) + rest)
        done = run(["plan", model, "--quantization", "fp8", "--dtype", "bfloat16"])
        self.assertIn("linear layers in f8_e4m3, embedding, head and norms in bf16", done.stdout)
        done = run(["plan", model, "--quantization", "int3"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("int3 not in {auto,fp8}", done.stderr)

    def test_the_limit_is_the_cgroups(self):
        limit = 300 << 20
        with memory_cgroup(limit) as group:
            # The KV cache alone exceeds the cgroup, and is far below the machine's memory.
            self.refused(["generate", harness.smollm(), "--prompt", "x", "--kv-cache-memory-bytes", limit + 1,
                          "--max-model-len", 512], None, "does not fit",
                         prefix=["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"])

    def test_a_port_in_use(self):
        harness.needs_serve()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = self.refused(["serve", harness.smollm(), "--port", port, *SMALL], 2, str(port))
            self.assertEqual(done.returncode, 1, "a refusal and no failure of the world: nothing to start again")
            done = self.refused(["serve", harness.smollm(), "--port", port, "--nproc-per-node", 2, *SMALL], None, str(port))
            self.assertEqual(done.returncode, 1, done.stderr)

    def test_what_rank_0_alone_reads(self):
        harness.needs_serve()
        for flags, code, word in ((["--host", "0.0.0.0"], 78, "--api-key-file"),
                                  (["--api-key-file", "/no/such/keys"], 78, "/no/such/keys"),
                                  (["--endpoint-file", "/no/such/folder/url"], 1, "/no/such/folder/url")):
            with self.subTest(flags=flags):
                done = self.refused(["serve", harness.smollm(), "--port", 0, "--nproc-per-node", 2, *flags, *SMALL], None, word)
                self.assertEqual(done.returncode, code, done.stderr)


class Interrupt(unittest.TestCase):
    def test_control_c_of_mpirun_ends_every_rank(self):
        harness.needs_serve()
        with harness.Server(2, harness.smollm(), [*SMALL]) as server:
            server.wait_ready()
            ranks = server.wait_ranks()
            exits = [harness.Exit(pid) for pid in ranks.values()]
            os.killpg(server.process.pid, signal.SIGINT)
            for exit_ in exits:
                self.assertTrue(exit_.within(30), server.log())
            server.wait_end(30)
            self.assertEqual(our_lines(server.log()), [])
            self.assertEqual(server.leftovers(), [])

    def test_sigterm_to_rank_0_drains_and_ends_with_0(self):
        harness.needs_serve()
        with harness.Server(2, harness.smollm(), [*SMALL, "--shutdown-timeout", 60]) as server:
            server.wait_ready()
            ranks = server.wait_ranks()
            stream = server.stream("/v1/completions", {"model": "m", "prompt": "Once upon a time", "max_tokens": 200,
                                                       "ignore_eos": True, "temperature": 0})
            self.assertTrue(stream.started.wait(60))
            os.kill(ranks[0], signal.SIGTERM)
            stream.wait(120)
            self.assertEqual(stream.finish_reason(), "length")
            self.assertEqual(server.wait_end(30), 0, server.log())
            self.assertEqual(our_lines(server.log()), [])
            self.assertEqual(server.leftovers(), [])


if __name__ == "__main__":
    harness.main()
