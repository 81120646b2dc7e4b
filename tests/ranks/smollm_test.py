"""SmolLM2 says Paris, whatever the layout and the file format, and the layouts agree on the numbers."""
import pathlib
import shutil
import tempfile
import unittest

import harness

FLAGS = ["--kv-cache-memory-bytes", 128 << 20, "--max-model-len", 1024]
LAYOUTS = [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3)]
# Without its second sentence two first words are closer to each other than layouts are in bf16.
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "What is the capital of France? Answer in a full sentence."}],
            "temperature": 0, "max_tokens": 16, "logprobs": True, "top_logprobs": 20}

# How far a log-probability of the first token's twenty likeliest may be from that of TP 1 × PP 1. Layouts differ in
# the order of sums; bf16 rounds each of them.
BOUND_GGUF = 0.02
BOUND_BF16 = 0.25
# Between the formats: Q4_1 × int8 activations in float against bf16 weights and activations.
BOUND_FORMATS = 0.5


def first_token(reply):
    """{token bytes: log-probability} of the twenty likeliest."""
    top = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return {bytes(entry["bytes"]): entry["logprob"] for entry in top}


def distance(a, b):
    """The largest difference over the ten likeliest of `a`; a token that b's twenty lack is infinitely far."""
    likeliest = sorted(a, key=a.get, reverse=True)[:10]
    return max(abs(a[token] - b[token]) if token in b else float("inf") for token in likeliest)


class Paris(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        harness.needs_serve()
        cls.reference = {}

    def ask(self, model, tp, pp):
        with harness.Server(tp * pp, model, ["--tp", tp, "--pp", pp, *FLAGS]) as server:
            server.wait_ready()
            status, reply = server.post("/v1/chat/completions", QUESTION)
            self.assertEqual(status, 200, reply)
            self.assertIn("Paris", reply["choices"][0]["message"]["content"])
            return first_token(reply)

    def agree_over_layouts(self, model, name, bound):
        reference = None
        for tp, pp in LAYOUTS:
            with self.subTest(tp=tp, pp=pp):
                top = self.ask(model, tp, pp)
                reference = reference or top
                far = distance(reference, top)
                print(f"  {name} TP {tp} × PP {pp}: log-probabilities within {far:.2g} of TP 1 × PP 1")
                self.assertLessEqual(far, bound)
        return reference

    def test_gguf_and_converted(self):
        quantized = self.agree_over_layouts(harness.smollm(), "GGUF", BOUND_GGUF)
        directory = tempfile.mkdtemp(prefix="llm-dist-smollm-bf16-")
        try:
            done = harness.run(["convert", harness.smollm(), directory, "--dtype", "bfloat16"])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertGreater((pathlib.Path(directory) / "model.safetensors").stat().st_size, 2 * 130_000_000)
            dense = self.agree_over_layouts(directory, "bf16", BOUND_BF16)
        finally:
            shutil.rmtree(directory)
        far = distance(quantized, dense)
        print(f"  GGUF against bf16: {far:.2g}")
        self.assertLessEqual(far, BOUND_FORMATS)


if __name__ == "__main__":
    harness.main()
