"""`bench latency`, `comm`, `kernels`, `load` and --profile: what they write under mpirun, and that it adds up."""
import json
import pathlib
import tempfile
import unittest

import harness

SMALL = ["--kv-cache-memory-bytes", 64 << 20, "--max-model-len", 512]


class Bench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        harness.needs_mpirun()

    def written(self, arguments, flag, np=2):
        """What the run wrote to the file of `flag`, and what it printed."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "out.json"
            done = harness.run([*arguments, flag, path], np=np, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(path.read_text()), done

    def assert_profile(self, profile, ranks):
        self.assertEqual(len(profile["rank_profiles"]), ranks)
        for rank in profile["rank_profiles"]:
            self.assertGreater(rank["timestamp_us"], 0)
            for table in rank["tables"]:
                with self.subTest(step=table["label"]):
                    shares = sum(row["share"] for row in table["rows"])
                    self.assertGreaterEqual(table["gaps_us"], 0)
                    self.assertLessEqual(shares, 1.000001)
                    self.assertAlmostEqual(shares + table["gaps_share"], 1, places=5)
                    self.assertLessEqual(table["num_counted"], table["num_steps"])
                    for row in table["rows"]:
                        self.assertGreater(row["calls"], 0)
                        self.assertGreaterEqual(row["us"], 0)

    def assert_trace(self, events, ranks):
        """Ops lie inside their step, one after the other, on every rank."""
        self.assertEqual({e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"},
                         {rank: f"rank {rank}" for rank in range(ranks)})
        for rank in range(ranks):
            spans = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
            steps = {e["args"]["step"]: e for e in spans if e["cat"] in ("decode", "prefill")}
            self.assertTrue(steps)
            ends = {}
            for op in (e for e in spans if e["cat"] not in ("decode", "prefill")):
                number = op["args"]["step"]
                step = steps[number]
                self.assertGreaterEqual(op["ts"], ends.get(number, step["ts"]) - 0.002)
                ends[number] = op["ts"] + op["dur"]
                self.assertLessEqual(ends[number], step["ts"] + step["dur"] + 0.002)
            self.assertEqual(set(ends), set(steps))

    def test_latency_of_one_token_is_that_of_its_prompt(self):
        result, done = self.written(
            ["bench", "latency", harness.smollm(), "--batch", "1,2", "--input-len", 16, "--output-len", 1, "--repeats", 1,
             *SMALL], "--save-result", np=1)
        self.assertNotIn("inf", done.stdout)
        self.assertEqual([row["batch"] for row in result["rows"]], [1, 2])
        for row in result["rows"]:
            self.assertGreater(row["median_ttft_ms"], 0)
            self.assertNotIn("median_tpot_ms", row)

    def test_latency_is_of_steps_of_the_whole_batch(self):
        result, _ = self.written(
            ["bench", "latency", harness.smollm(), "--batch", 4, "--input-len", 32, "--output-len", 8, "--repeats", 1,
             "--max-num-batched-tokens", 36, *SMALL], "--save-result", np=1)
        # Each step reads about one prompt: whoever comes first has more than half of its tokens when the last comes.
        self.assertGreater(result["rows"][0]["context"], 32 + 4)
        self.assertGreater(result["rows"][0]["median_tpot_ms"], 0)

    def test_graphs_are_as_large_as_a_stages_share_of_the_sequences(self):
        result, done = self.written(
            ["bench", "throughput", harness.smollm(), "--pp", 2, "--num-prompts", 8, "--input-len", 16, "--output-len", 8,
             "--max-num-seqs", 7, "--cuda-graph-sizes", "1,2,4,5,7", *SMALL], "--save-result")
        self.assertEqual(result["graph_sizes"], [1, 2, 4])
        self.assertIn("--cuda-graph-sizes: none above 4", done.stderr)

    def test_latency_of_tokens_that_are_drawn(self):
        result, _ = self.written(
            ["bench", "latency", harness.smollm(), "--batch", "1,2", "--input-len", 16, "--output-len", 4, "--repeats", 1,
             "--temperature", 0.6, "--top-p", 0.9, "--top-k", 50, *SMALL], "--save-result", np=1)
        self.assertEqual([result[name] for name in ("temperature", "top_p", "top_k")], [0.6, 0.9, 50])
        trace, _ = self.written(
            ["bench", "latency", harness.smollm(), "--batch", "2", "--input-len", 16, "--output-len", 4, "--repeats", 1,
             "--temperature", 0.6, *SMALL], "--profile", np=1)
        tables = {table["label"]: table for table in trace["profile"]["rank_profiles"][0]["tables"]}
        names = [row["name"] for row in tables["decode, batch 2"]["rows"]]
        self.assertIn("sample", names)
        self.assertNotIn("argmax_shard", names)

    def test_latency_of_a_batch_without_room(self):
        for length, code, words in ((64, 78, "--max-model-len is 64"), (96, 1, "and there is memory for")):
            done = harness.run(
                ["bench", "latency", harness.smollm(), "--tp", 2, "--batch", 8, "--input-len", 48, "--output-len", 32,
                 "--max-model-len", length, "--kv-cache-memory-bytes", 6 << 20], np=2)
            self.assertEqual(done.returncode, code)
            self.assertIn(words, done.stderr)

    def test_profile_of_latency(self):
        trace, done = self.written(
            ["bench", "latency", harness.smollm(), "--tp", 2, "--batch", "1,2", "--input-len", 32, "--output-len", 8,
             "--repeats", 1, *SMALL], "--profile")
        self.assert_profile(trace["profile"], 2)
        self.assert_trace(trace["traceEvents"], 2)
        for rank in trace["profile"]["rank_profiles"]:
            tables = {table["label"]: table for table in rank["tables"]}
            for batch in (1, 2):
                rows = {row["name"]: row for row in tables[f"decode, batch {batch}"]["rows"]}
                # The embedding and two of each of 30 layers.
                self.assertAlmostEqual(rows["all_reduce"]["calls"], 61)
                self.assertEqual(rows["all_reduce"]["kind"], "collective")
                self.assertAlmostEqual(rows["attention"]["calls"], 30)
                self.assertAlmostEqual(rows["linear_silu_and_mul 1536x576"]["calls"], 30)
            self.assertTrue(any(not table["decode"] for table in rank["tables"]))
        for words in ("decode, batch 2", "all_reduce", "gaps", "rank 1: step", "A timestamp takes"):
            self.assertIn(words, done.stderr)

    def test_profile_of_generate_on_two_stages(self):
        trace, done = self.written(
            ["generate", harness.smollm(), "--pp", 2, "--prompt", "Once", "--max-tokens", 6, *SMALL], "--profile")
        self.assert_profile(trace["profile"], 2)
        self.assert_trace(trace["traceEvents"], 2)
        self.assertNotIn("us a step", done.stdout)
        last = trace["profile"]["rank_profiles"][1]["tables"]
        self.assertTrue(any(row["name"] == "wait_for_stage" for table in last for row in table["rows"]))

    def test_comm(self):
        result, done = self.written(
            ["bench", "comm", "--sizes", "4KiB:16KiB,1MiB", "--op", "all_reduce,reduce_scatter,all_gather,send_recv",
             "--repeats", 20], "--save-result")
        self.assertEqual((result["world_size"], result["group_size"], result["backend"]), (2, 2, "mpi"))
        rows = {(row["op"], row["bytes"]): row for row in result["rows"]}
        self.assertEqual(len(rows), 16)
        factors = {"all_reduce": 1, "reduce_scatter": 0.5, "all_gather": 0.5, "send_recv": 1}
        for (op, size), row in rows.items():
            with self.subTest(op=op, size=size):
                self.assertGreater(row["median_us"], 0)
                self.assertGreaterEqual(row["p99_us"], row["median_us"])
                bandwidth = size / row["median_us"] * 1e-3
                self.assertAlmostEqual(row["algorithm_gb_per_second"] / bandwidth, 1, places=6)
                self.assertAlmostEqual(row["bus_gb_per_second"] / bandwidth, factors[op], places=6)
        self.assertIn("bus GB/s", done.stdout)

    def test_comm_refuses_with_one_line(self):
        for arguments in (["--op", "allreduce"], ["--sizes", "4XiB"], ["--tp", 3]):
            with self.subTest(arguments=arguments):
                done = harness.run(["bench", "comm", *arguments], np=2)
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual(len(harness.our_lines(done.stderr)), 1, done.stderr)
                self.assertIn(str(arguments[1]), done.stderr)

    def test_load(self):
        result, done = self.written(["bench", "load", harness.smollm(), "--tp", 2, *SMALL], "--save-result")
        self.assertEqual([row["rank"] for row in result["ranks"]], [0, 1])
        for row in result["ranks"]:
            rate = row["bytes_read"] / row["seconds"] * 1e-9
            self.assertAlmostEqual(row["gb_per_second"] / rate, 1, places=6)
            self.assertGreater(row["host_copy_gb_per_second"], 0)
            self.assertEqual(row["to_device_gb_per_second"], 0)  # the host's memory is the device's
            self.assertAlmostEqual(row["ceiling_fraction"], rate / row["host_copy_gb_per_second"], places=6)
            self.assertGreater(row["requests"], 0)
        # Both ranks together read each tensor, and the norms' few bytes twice.
        read = sum(row["bytes_read"] for row in result["ranks"])
        self.assertEqual([host["bytes_read"] for host in result["hosts"]], [read])
        self.assertLessEqual(result["model_bytes"], read)
        self.assertLess(read, 1.02 * result["model_bytes"])
        self.assertIn("of ceiling", done.stdout)

    def test_load_of_made_up_weights_is_refused_with_one_line(self):
        done = harness.run(["bench", "load", harness.smollm(), "--load-format", "dummy", "--tp", 2], np=2)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(len(harness.our_lines(done.stderr)), 1, done.stderr)
        self.assertIn("--load-format dummy", done.stderr)

    def test_kernels(self):
        result, done = self.written(
            ["bench", "kernels", harness.smollm(), "--tp", 2, "--batch", "1,3", "--input-len", "24,64", *SMALL],
            "--save-result")
        self.assertGreater(result["ceilings"]["memory_read_bytes_per_second"], 0)
        steps = {step["step"]: {row["op"]: row for row in step["rows"]} for step in result["steps"]}
        self.assertEqual(len(steps), 4)
        for rows in steps.values():
            for row in rows.values():
                self.assertGreater(row["us"], 0)
                self.assertGreater(row["bytes"], 0)
                self.assertGreater(row["ceiling_fraction"], 0)
                self.assertAlmostEqual(row["us_a_step"], row["us"] * row["calls_a_step"], places=3)
        decode = steps["decode, batch 3, contexts of 24 tokens"]
        gate_up = decode["linear_silu_and_mul 1536x576"]
        self.assertEqual((gate_up["rows"], gate_up["calls_a_step"]), (3, 30))
        self.assertEqual(gate_up["flops"], 2 * 3 * 1536 * 576)
        # Q4_1: 20 bytes hold 32 weights; activations are floats.
        self.assertEqual(gate_up["bytes"], 1536 * 576 // 32 * 20 + 3 * (768 + 576) * 4)
        for op in ("attention", "add_rms_norm", "rope_append", "argmax_shard", "sample"):
            self.assertIn(op, decode)
        # Behind the last attention, the sampled row of a prompt and one of padding.
        prompt = next(step for step in result["steps"] if step["step"] == "prompt of 64 tokens")
        gate_ups = {row["rows"]: row["calls_a_step"] for row in prompt["rows"] if row["op"] == gate_up["op"]}
        self.assertEqual(gate_ups, {64: 29, 2: 1})
        self.assertNotIn("sample", steps["prompt of 64 tokens"])
        self.assertIn("of ceiling", done.stdout)

    def assert_unequal(self, lengths, count, mean, ratio):
        self.assertEqual((len(lengths), sum(lengths)), (count, count * mean))
        self.assertGreater(len(set(lengths)), count // 2)
        self.assertTrue(all(abs(length - mean) <= ratio * mean for length in lengths), lengths)

    def test_latency_of_unequal_prompts(self):
        result, _ = self.written(
            ["bench", "latency", harness.smollm(), "--batch", "1,6", "--input-len", 40, "--output-len", 2, "--repeats", 1,
             "--random-range-ratio", 0.5, *SMALL], "--save-result", np=1)
        self.assertEqual(result["rows"][0]["input_lens"], [40])
        self.assert_unequal(result["rows"][1]["input_lens"], 6, 40, 0.5)

    def test_kernels_of_unequal_contexts(self):
        def attention(ratio, contexts):
            result, _ = self.written(["bench", "kernels", harness.smollm(), "--batch", 4, "--input-len", 40,
                                      "--random-range-ratio", ratio, *SMALL], "--save-result", np=1)
            self.assertEqual(result["random_range_ratio"], ratio)
            steps = {step["step"]: step for step in result["steps"]}
            step = steps[f"decode, batch 4, contexts of {contexts} tokens"]
            if ratio > 0:
                self.assert_unequal(step["input_lens"], 4, 40, ratio)
            return next(row for row in step["rows"] if row["op"] == "attention")

        # As many keys on the mean, but for the steps that lead to the one that is timed.
        self.assertAlmostEqual(attention(0.9, "40 ± 90 %")["bytes"] / attention(0, "40")["bytes"], 1, delta=0.1)
        # The longest that there may be are refused where they have no room.
        done = harness.run(["bench", "kernels", harness.smollm(), "--batch", 4, "--input-len", 300,
                            "--random-range-ratio", 0.9, *SMALL])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("sequences of up to 570 tokens have no room to decode: raise --max-model-len, which is 512",
                      done.stderr)

    def test_kernels_of_linear_layers_in_fp8(self):
        model = pathlib.Path(__file__).parent.parent / "golden/data/grouped"  # hidden 27, 9 × 16 heads, 50 inner
        result, _ = self.written(
            ["bench", "kernels", model, "--quantization", "fp8", "--dtype", "bfloat16", "--batch", 2, "--input-len", 8,
             "--kv-cache-memory-bytes", 1 << 22], "--save-result", np=1)
        self.assertGreater(result["ceilings"]["gemm_flops_per_second"], 0)
        self.assertGreater(result["ceilings"]["head_flops_per_second"], 0)
        out = next(row for row in result["steps"][0]["rows"] if row["op"] == "linear 27x144")
        # A byte a weight and four a row; activations in 16 bits.
        rows = out["rows"]
        self.assertEqual(out["bytes"], 27 * (144 + 4) + rows * (144 + 27) * 2)


if __name__ == "__main__":
    harness.main()
