#!/usr/bin/env python3
"""`llm-dist submit` at a coordinator whose answers get lost: it asks again with the same key until it knows its job."""
import http.server
import json
import os
import subprocess
import sys
import threading
import unittest

from kill_test import BINARY

IN_FLIGHT = {"error": {"message": "is being carried out", "code": "idempotency_key_in_flight"}}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers the n-th request as `server.answers` says; None: not at all."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.keys.append(self.headers["Idempotency-Key"])
        answer = self.server.answers[len(self.server.keys) - 1]
        if answer is None:
            return
        status, body = answer
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class SubmitTest(unittest.TestCase):
    def submit(self, answers):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        server.answers, server.keys = answers, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run([BINARY, "submit", "bench", "m", "--url", f"http://127.0.0.1:{server.server_port}"],
                              capture_output=True, text=True, timeout=120)
        return done, server.keys

    def test_its_own_request_is_still_being_carried_out(self):
        done, keys = self.submit([None, (409, IN_FLIGHT), (201, {"id": "job-1"})])
        self.assertEqual((done.returncode, done.stdout), (0, "job-1\n"), done.stderr)
        self.assertEqual(len(keys), 3)
        self.assertEqual(len(set(keys)), 1)

    def test_another_conflict_is_an_answer(self):
        done, keys = self.submit([(409, {"error": {"message": "too late", "code": "conflict"}})])
        self.assertEqual(done.returncode, 1)
        self.assertIn("too late", done.stderr)
        self.assertEqual(len(keys), 1)


if __name__ == "__main__":
    if not os.path.exists(BINARY):
        sys.exit(77)
    unittest.main(verbosity=2)
