#!/usr/bin/env python3
"""SIGHUP: `llm-dist coordinator` reads its catalogue again, models and quotas; what cannot be read changes nothing.

Ends with 77 where there is no program.
"""
import json
import os
import pathlib
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from kill_test import BINARY, Coordinator  # noqa: E402
from harness import wait_until  # noqa: E402


class ReloadTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.coordinator = Coordinator(folder.name)
        self.coordinator.start()
        self.addCleanup(self.coordinator.kill)

    def log(self):
        return (self.coordinator.folder / "log").read_text()

    def reload(self, text, says):
        (self.coordinator.folder / "models.json").write_text(text)
        before = len(self.log())
        self.coordinator.process.send_signal(signal.SIGHUP)
        wait_until(lambda: says in self.log()[before:], 60, lambda: f"{says!r} in {self.log()[before:]}")

    def submit(self, model, **more):
        # More ranks than there are slots: nothing is launched.
        job = {"type": "serve", "model": model, "tp": 2, **more}
        status, _, body = self.coordinator.request("POST", "/v1/jobs", json.dumps(job))
        return status, json.loads(body)

    def test_the_catalogue_is_read_again(self):
        self.assertEqual(self.submit("m")[0], 201)
        self.assertEqual(self.submit("n")[0], 404)
        two = {"models": {"m": {"path": "/nowhere.gguf"}, "n": {"path": "/nowhere.gguf", "max_ranks": 8}},
               "projects": {"tight": {"max_slots": 1}}}
        self.reload(json.dumps(two), "is in force as it is now")
        self.assertEqual(self.submit("n")[0], 201)
        status, body = self.submit("n", project="tight")
        self.assertEqual((status, body["error"]["code"]), (403, "quota_too_small"))
        self.assertIn(b'llm_dist_project_quota{project="tight",limit="max_slots"} 1',
                      self.coordinator.request("GET", "/metrics")[2])
        del two["models"]["m"]
        self.reload(json.dumps(two), "is in force as it is now")
        self.assertEqual(self.submit("m")[0], 404)

    def test_a_model_that_is_not_there_is_said_and_the_others_go_on(self):
        folder = self.coordinator.folder
        words = f"{folder}/models.json: model '%s': %s"
        self.assertIn(words % ("m", "/nowhere.gguf"), self.log())
        (folder / "here.gguf").write_text("")
        models = {"here": {"path": "here.gguf"}, "away": {"path": "away.gguf"}}
        self.reload(json.dumps({"models": models}), words % ("away", folder / "away.gguf"))
        self.assertNotIn("model 'here'", self.log())
        wait_until(lambda: "is in force as it is now" in self.log(), 60, self.log)
        self.assertEqual(self.submit("here")[0], 201)

    def test_what_cannot_be_read_leaves_the_former_content(self):
        for broken, why in [("{", "must be"), ('{"models": {}}', "names no model"),
                            ('{"models": {"n": {"path": "/n", "arguments": ["--tensor-parallel-size=2"]}}}',
                             "'--tensor-parallel-size=2': --tp is not for the catalogue"),
                            ('{"models": {"n": {"path": "/n", "arguments": ["-tp", "2"]}}}',
                             "'-tp': --tp is not for the catalogue"),
                            ('{"models": {"n": {"path": "/n"}}, "projects": {"*": {"max_slot": 1}}}', "max_slots")]:
            self.reload(broken, "stays in force")
            self.assertIn(why, self.log())
            self.assertEqual(self.submit("m")[0], 201, broken)
            self.assertEqual(self.submit("n")[0], 404, broken)
        os.remove(self.coordinator.folder / "models.json")
        self.coordinator.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "cannot read the catalogue" in self.log(), 60, self.log)
        self.assertEqual(self.submit("m")[0], 201)
        self.assertEqual(self.coordinator.stop(), 0)


if __name__ == "__main__":
    if not os.path.exists(BINARY):
        sys.exit(77)
    unittest.main(verbosity=2)
