"""Servers on every GPU of this machine: many streams at once, and a rank that is killed under load.

Environment: LLM_DIST_GPU_MODEL and LLM_DIST_GPU_FLAGS, another model than SmolLM2 and more flags of `serve`.
"""
import os
import shutil
import signal
import subprocess
import time
import unittest

import harness
import load_test

NUM_STREAMS = 128
NUM_REPLAYED = NUM_STREAMS if harness.FULL else 16
NCCL_ALONE = ["--disable-custom-all-reduce", "--disable-custom-hand-off"]
LAYOUTS = {1: [(1, 1)], 2: [(2, 1), (1, 2)], 3: [(3, 1)], 4: [(4, 1), (2, 2)]}
# Without its second sentence two first words are all but equally likely, closer than bfloat16 is from one layout to the
# next.
ANSWER = {"model": "m", "temperature": 0, "max_tokens": 16,
          "messages": [{"role": "user", "content": "What is the capital of France? Answer in a full sentence."}]}


def memory_used():
    """MiB in use on each GPU of this machine."""
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True, check=False, timeout=60).stdout
    return [int(line) for line in out.split()]


def layouts():
    return [layout for count, some in LAYOUTS.items() if count <= len(memory_used()) for layout in some]


class Gpu(load_test.Streams):
    # Of a log-probability with bfloat16 activations: single ones of SmolLM2 differ by more than 0.5 between layouts, also
    # on CPUs, while a sequence that read another's cache would not even have its token among the likeliest.
    epsilon = 1.0
    mean_epsilon = 0.05

    @classmethod
    def setUpClass(cls):
        if shutil.which("nvidia-smi") is None or not memory_used():
            raise unittest.SkipTest("no NVIDIA GPU is here")
        harness.needs_serve()

    def serve(self, tp, pp, flags=()):
        model = os.environ.get("LLM_DIST_GPU_MODEL") or harness.smollm()
        more = os.environ.get("LLM_DIST_GPU_FLAGS", "").split()
        return harness.Server(tp * pp, model, ["--device", "cuda", "--tp", tp, "--pp", pp, "--max-model-len", 1024,
                                               "--max-num-seqs", NUM_STREAMS, *more, *flags])

    def test_paris(self):
        for tp, pp in layouts():
            with self.subTest(tp=tp, pp=pp), self.serve(tp, pp) as server:
                status, answer = server.wait_ready().post("/v1/chat/completions", ANSWER)
                self.assertEqual(status, 200, answer)
                self.assertIn("Paris", answer["choices"][0]["message"]["content"])

    def test_paris_over_nccl_alone(self):
        for tp, pp in layouts():
            if tp * pp == 1:
                continue
            with self.subTest(tp=tp, pp=pp), self.serve(tp, pp, NCCL_ALONE) as server:
                status, answer = server.wait_ready().post("/v1/chat/completions", ANSWER)
                self.assertEqual(status, 200, answer)
                self.assertIn("Paris", answer["choices"][0]["message"]["content"])
                self.assertNotIn("peer memory", server.log())

    def test_many_streams(self):
        runs = [(tp, pp, ()) for tp, pp in layouts()[-2:]]
        runs += [(tp, pp, ["--disable-custom-hand-off"]) for tp, pp, _ in runs if pp > 1]  # as between hosts
        for tp, pp, flags in runs:
            with self.subTest(tp=tp, pp=pp, flags=flags), self.serve(tp, pp, flags) as server:
                server.wait_ready()
                usage_before = server.metric("kv_cache_usage_perc")
                requests = load_test.make_requests(seed=1, count=NUM_STREAMS)
                begin = time.monotonic()
                streams = self.run_together(server, requests)
                took = time.monotonic() - begin
                server.wait_idle(usage_before)
                differences = []
                for request, stream in list(zip(requests, streams))[:NUM_REPLAYED]:
                    differences += self.replay(server, request, load_test.tokens_of(stream))
                mean = sum(differences) / len(differences)
                print(f"  TP {tp} x PP {pp} {' '.join(flags)}: {NUM_STREAMS} streams in {took:.2f} s, {NUM_REPLAYED} replayed "
                      f"alone: log-probabilities differ by {mean:.4f} on the mean, {max(differences):.3f} at most", flush=True)
                self.assertLessEqual(mean, self.mean_epsilon)

    def test_a_killed_rank_ends_all_and_frees_the_memory(self):
        before = memory_used()
        if len(before) == 1:
            self.skipTest("one GPU: no other rank to survive")
        for tp, pp in layouts()[-2:]:
            with self.subTest(tp=tp, pp=pp), self.serve(tp, pp) as server:
                server.wait_ready()
                requests = load_test.make_requests(seed=1, count=NUM_STREAMS)
                streams = [server.stream("/v1/completions", request) for request in requests]
                streams[0].started.wait(60)
                ranks = server.wait_ranks()
                survivors = [harness.Exit(pid) for rank, pid in ranks.items() if rank != tp * pp - 1]
                begin = time.monotonic()
                os.kill(ranks[tp * pp - 1], signal.SIGKILL)
                self.assertTrue(all(exit_.within(begin + 3 - time.monotonic()) for exit_ in survivors), server.log())
                took = time.monotonic() - begin
                self.assertNotEqual(server.wait_end(10), 0)
                lines = harness.our_lines(server.log())
                self.assertEqual(len(lines), 1, server.log())
                self.assertIn(f"device cuda:{tp * pp - 1}, ", lines[0])
                self.assertEqual(server.leftovers(), [])
                harness.wait_until(lambda: all(now <= was + 64 for now, was in zip(memory_used(), before)), 10,
                                   lambda: f"the GPUs' memory is free again: {before} before, {memory_used()} MiB now")
                print(f"  TP {tp} x PP {pp}: rank {tp * pp - 1} killed, survivors out after {took:.2f} s", flush=True)


if __name__ == "__main__":
    harness.main()
