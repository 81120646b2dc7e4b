"""What a rank holds in memory: its slice of the file, what was planned, and no second copy of anything."""
import json
import unittest

import harness

KV_BYTES = 64 << 20
SLACK_BYTES = 64 << 20  # the program itself: code, libraries, stacks, tokenizer, MPI
FLAGS = ["--kv-cache-memory-bytes", KV_BYTES, "--max-model-len", 1024, "--max-num-batched-tokens", 512]


class Memory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        harness.needs_serve()

    def check(self, tp):
        planned = harness.run(["plan", harness.smollm(), "--tp", tp, *FLAGS, "--json"])
        self.assertEqual(planned.returncode, 0, planned.stderr)
        plans = json.loads(planned.stdout)["ranks"]
        with harness.Server(tp, harness.smollm(), ["--tp", tp, *FLAGS]) as server:
            server.wait_ready()
            status, reply = server.post("/v1/completions", {"model": "m", "prompt": "tell me " * 400, "max_tokens": 8,
                                                            "temperature": 0, "ignore_eos": True})
            self.assertEqual(status, 200, reply)
            for rank, pid in sorted(server.wait_ranks().items()):
                bound = plans[rank]["fixed_bytes"] + KV_BYTES + SLACK_BYTES
                rss = harness.status_bytes(pid, "VmRSS")
                print(f"  TP {tp} rank {rank}: RSS {rss >> 20} MiB, bound {bound >> 20} MiB "
                      f"(weights {plans[rank]['weight_bytes'] >> 20}; anonymous {harness.status_bytes(pid, 'RssAnon') >> 20}, "
                      f"file {harness.status_bytes(pid, 'RssFile') >> 20}, shared {harness.status_bytes(pid, 'RssShmem') >> 20})")
                self.assertLessEqual(rss, bound, f"rank {rank}")

    def test_one_rank(self):
        self.check(1)

    def test_two_ranks(self):
        self.check(2)


if __name__ == "__main__":
    harness.main()
