"""Many streams over a pool too small for them: preemption and disconnection lose and change nothing."""
import random
import re
import unittest

import harness

NUM_STREAMS = 64
NUM_CANCELLED = 13  # 20 %
POOL_TOKENS = 768  # a sixth of what the streams need together
BLOCK = 16
EPSILON = 1e-3  # of a log-probability in float32: sums in another order, and greedy ties
NUM_REPLAYED = NUM_STREAMS if harness.FULL else 8
WORDS = ("time river stone light garden winter music road house bird letter ocean mountain table window story "
         "friend morning color number").split()


def make_requests(seed, count):
    draw = random.Random(seed)
    requests = []
    for _ in range(count):
        prompt = "The " + " ".join(draw.choice(WORDS) for _ in range(draw.choice([4, 8, 16, 30, 60])))
        requests.append({"model": "m", "prompt": prompt, "max_tokens": draw.choice([24, 48, 96, 128]), "temperature": 0,
                         "ignore_eos": True, "skip_special_tokens": False, "logprobs": 20,
                         "return_tokens_as_token_ids": True})
    return requests


def id_of(name):
    return int(name.removeprefix("token_id:"))


def tokens_of(stream):
    """[(id, log-probability, {id: log-probability} of the twenty likeliest)]"""
    out = []
    for choice in stream.choices():
        logprobs = choice.get("logprobs") or {}
        for token, logprob, top in zip(*(logprobs.get(key, []) for key in ("tokens", "token_logprobs", "top_logprobs"))):
            out.append((id_of(token), logprob, {id_of(name): value for name, value in top.items()}))
    return out


def ids_of(tokens):
    return [token for token, _, _ in tokens]


class Streams(unittest.TestCase):
    """Checks of many streams at once, for any device."""
    epsilon = EPSILON

    def run_together(self, server, requests, cancelled=frozenset()):
        """The streams, all of them ended; those in `cancelled` left after five events."""
        streams = [server.stream("/v1/completions", request) for request in requests]
        for i in cancelled:
            streams[i].cancel_after = 5
        for stream in streams:
            stream.wait()
        self.check_complete(server, requests, streams, cancelled)
        return streams

    def check_complete(self, server, requests, streams, cancelled):
        for i, (request, stream) in enumerate(zip(requests, streams)):
            self.assertEqual(stream.status, 200, stream.events)
            if i in cancelled:
                continue
            with self.subTest(stream=i):
                self.assertIsNone(stream.failure)
                self.assertIsNone(stream.error())
                self.assertTrue(stream.done)
                self.assertEqual(stream.finish_reason(), "length")
                self.assertEqual(len(tokens_of(stream)), request["max_tokens"])
                self.assertEqual(server.post("/detokenize", {"tokens": ids_of(tokens_of(stream))}),
                                 (200, {"prompt": stream.text()}))

    def replay(self, server, request, emitted):
        """Alone, each token that the stream emitted is within epsilon of the likeliest, and as likely as it was there;
        after a tie that falls differently the replay goes on from the tokens that the stream had. Returns by how much
        the log-probability of each differs."""
        status, tokenized = server.post("/tokenize", {"prompt": request["prompt"]})
        self.assertEqual(status, 200, tokenized)
        differences = []
        while (at := len(differences)) < len(emitted):
            alone = server.stream("/v1/completions",
                                  {**request, "prompt": tokenized["tokens"] + ids_of(emitted[:at]),
                                   "max_tokens": len(emitted) - at}).wait()
            self.assertTrue(alone.done, alone.events[-1:])
            for (token, logprob, _), (alone_token, best, top) in zip(emitted[at:], tokens_of(alone)):
                self.assertIn(token, top, f"instead of {alone_token} at {len(differences)}")
                self.assertLessEqual(best - top[token], self.epsilon,
                                     f"{token} instead of {alone_token} at {len(differences)}")
                differences.append(abs(logprob - top[token]))
                self.assertLessEqual(differences[-1], self.epsilon, f"{token} at {len(differences)}")
                if token != alone_token:
                    break
        return differences


class Load(Streams):
    @classmethod
    def setUpClass(cls):
        harness.needs_serve()

    def kv_bytes_per_token(self, layout):
        done = harness.run(["plan", harness.smollm(), *layout, "--json"])
        return max(float(x) for x in re.findall(r'"kv_bytes_per_token": ([\d.]+)', done.stdout))

    def check(self, layout):
        bytes_ = int(self.kv_bytes_per_token(layout) * POOL_TOKENS) + 4096
        flags = [*layout, "--kv-cache-memory-bytes", bytes_, "--max-model-len", 384, "--block-size", BLOCK]
        with harness.Server(2, harness.smollm(), flags) as server:
            server.wait_ready()
            usage_before = server.metric("kv_cache_usage_perc")
            requests = make_requests(seed=1, count=NUM_STREAMS)
            cancelled = set(random.Random(2).sample(range(NUM_STREAMS), NUM_CANCELLED))
            streams = self.run_together(server, requests, cancelled)
            preemptions = server.metric("num_preemptions_total")
            self.assertGreaterEqual(preemptions, 10)
            server.wait_idle(usage_before)
            self.assertEqual(server.metric("num_requests_waiting"), 0)
            print(f"  {' '.join(map(str, layout))}: {preemptions:.0f} preemptions")
            kept = [i for i in range(NUM_STREAMS) if i not in cancelled]
            for i in kept[:NUM_REPLAYED]:
                self.replay(server, requests[i], tokens_of(streams[i]))
            server.wait_idle(usage_before)

    def test_tensor_parallel(self):
        self.check(["--tp", 2, "--pp", 1])

    def test_pipeline(self):
        self.check(["--tp", 1, "--pp", 2])

    def test_deterministic(self):
        """Every log-probability of every stream is to the last digit what it is alone."""
        with harness.Server(2, harness.smollm(), ["--tp", 2, "--deterministic", "--max-model-len", 384]) as server:
            server.wait_ready()
            requests = make_requests(seed=3, count=6)
            together = [tokens_of(stream) for stream in self.run_together(server, requests)]
            alone = [tokens_of(self.run_together(server, [request])[0]) for request in requests]
            self.assertEqual(together, alone)


class Bench(unittest.TestCase):
    def test_little_of_the_allocated_cache_is_empty(self):
        done = harness.run(["bench", "throughput", harness.smollm(), "--num-prompts", 8, "--input-len", 256,
                            "--output-len", 24, "--kv-cache-memory-bytes", 256 << 20, "--max-model-len", 1024],
                           np=2, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        unused = re.search(r"hold no token, mean over the steps: ([\d.]+) %", done.stdout)
        self.assertIsNotNone(unused, done.stdout)
        print(f"  {unused[0]}")
        self.assertLess(float(unused[1]), 4.0)


if __name__ == "__main__":
    harness.main()
