"""The official openai client against `mpirun -np 2 llm-dist serve`."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import unittest

import harness

CLIENT = pathlib.Path(__file__).parents[1] / "server" / "openai_client_test.py"


class OpenAiClient(unittest.TestCase):
    def test_the_client_is_served(self):
        harness.needs_serve()
        python = os.environ.get("LLM_DIST_PYTHON", sys.executable)
        if python == sys.executable and importlib.util.find_spec("openai") is None:
            self.fail("the package openai is missing: scripts/deps.sh --test makes .venv, and scripts/test.sh names it "
                      "in LLM_DIST_PYTHON")
        with harness.Server(2, harness.smollm(), ["--kv-cache-memory-bytes", 128 << 20, "--max-model-len", 1024]) as server:
            server.wait_ready()
            done = subprocess.run([python, CLIENT], env={**os.environ, "LLM_DIST_URL": "http://%s:%d" % server.address}, timeout=300,
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("Paris", done.stdout)


if __name__ == "__main__":
    harness.main()
