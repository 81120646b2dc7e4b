#!/usr/bin/env python3
"""Files go through `llm-dist coordinator` and are never held in it: 512 MiB up and down while its memory grows by less
than 64 MiB; who may not upload is told so before the body; what does not arrive whole leaves nothing.

LLM_DIST_BINARY names the program, built without sanitizers. Ends with 77 where there is none.
"""
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import socket
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from kill_test import BINARY, Coordinator  # noqa: E402
from harness import wait_until  # noqa: E402

MIB = 1 << 20
LARGE_MIB = 512
MOST_GROWTH_MIB = 64
TYPE = "multipart/form-data; boundary=b"
HEAD = (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n')
TAIL = b"\r\n--b--\r\n"


def blocks(count):
    """Of 1 MiB each, all unlike."""
    random = os.urandom(MIB)
    for i in range(count):
        yield i.to_bytes(8, "little") + random[8:]


class FilesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "keys").write_text("writer read,write\nreader read\n")
        self.coordinator = Coordinator(folder.name, "--api-key-file", self.folder / "keys",
                                       "--max-file-bytes", str(LARGE_MIB * MIB))
        self.coordinator.start()
        self.addCleanup(lambda: self.coordinator.kill())

    def memory_mib(self, field):
        status = pathlib.Path(f"/proc/{self.coordinator.process.pid}/status").read_text()
        return int(status.split(field + ":")[1].split()[0]) / 1024

    def contents(self):
        sizes = []
        for each in (self.folder / "store.db.files").iterdir():
            with contextlib.suppress(FileNotFoundError):  # one that is taken away meanwhile
                sizes.append(each.stat().st_size)
        return sizes

    def connection(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.coordinator.port, timeout=120)
        self.addCleanup(connection.close)
        return connection

    def upload(self, num_mib):
        """The file's id, and the digest of what was sent."""
        digest = hashlib.sha256()

        def body():
            yield HEAD
            for block in blocks(num_mib):
                digest.update(block)
                yield block
            yield TAIL

        connection = self.connection()
        length = len(HEAD) + num_mib * MIB + len(TAIL)
        connection.request("POST", "/v1/files", body(), {
            "Authorization": "Bearer writer", "Content-Type": TYPE, "Content-Length": str(length)})
        reply = connection.getresponse()
        made = json.loads(reply.read())
        self.assertEqual(reply.status, 200, made)
        self.assertEqual(made["bytes"], num_mib * MIB)
        return made["id"], digest.hexdigest()

    def download(self, file):
        connection = self.connection()
        connection.request("GET", f"/v1/files/{file}/content", headers={"Authorization": "Bearer reader"})
        reply = connection.getresponse()
        self.assertEqual(reply.status, 200)
        digest, size = hashlib.sha256(), 0
        while piece := reply.read(MIB):
            digest.update(piece)
            size += len(piece)
        self.assertEqual(size, int(reply.headers["Content-Length"]))
        return digest.hexdigest()

    def test_a_large_file_takes_no_memory(self):
        file, digest = self.upload(1)
        self.assertEqual(self.download(file), digest)
        # The peak is counted from here.
        pathlib.Path(f"/proc/{self.coordinator.process.pid}/clear_refs").write_text("5")
        before = self.memory_mib("VmRSS")
        file, digest = self.upload(LARGE_MIB)
        after_upload = self.memory_mib("VmHWM")
        self.assertEqual(self.download(file), digest)
        after_download = self.memory_mib("VmHWM")
        print(f"{before:.0f} MiB; after {LARGE_MIB} MiB up {after_upload:.0f}, and down {after_download:.0f}")
        self.assertLess(after_download - before, MOST_GROWTH_MIB)

    def raw(self, key, length, expect=True):
        client = socket.create_connection(("127.0.0.1", self.coordinator.port), timeout=60)
        self.addCleanup(client.close)
        client.sendall(f"POST /v1/files HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\nContent-Type: {TYPE}\r\n"
                       f"{'Expect: 100-continue' if expect else 'X: y'}\r\nContent-Length: {length}\r\n\r\n".encode())
        return client

    def test_who_may_not_is_told_before_the_body(self):
        for key, length, answer in [("nobody", MIB, b"HTTP/1.1 401"), ("reader", MIB, b"HTTP/1.1 403"),
                                    ("writer", 600 * MIB, b"HTTP/1.1 413"), ("writer", MIB, b"HTTP/1.1 100")]:
            self.assertEqual(self.raw(key, length).recv(12), answer, key)
        self.assertEqual(self.contents(), [])

    def test_what_does_not_arrive_whole_leaves_nothing(self):
        client = self.raw("writer", 100 * MIB, expect=False)
        client.sendall(HEAD + bytes(5 * MIB))
        wait_until(lambda: sum(self.contents()) > 4 * MIB, 60, lambda: f"nothing is on the disk: {self.contents()}")
        client.close()
        wait_until(lambda: self.contents() == [], 60, lambda: f"left: {self.contents()}")
        # Nor when the coordinator is the one that goes.
        client = self.raw("writer", 100 * MIB, expect=False)
        client.sendall(HEAD + bytes(5 * MIB))
        wait_until(lambda: sum(self.contents()) > 4 * MIB, 60, lambda: f"nothing is on the disk: {self.contents()}")
        self.coordinator.kill()
        self.coordinator.start()
        self.assertEqual(self.contents(), [])
        file, digest = self.upload(2)
        self.assertEqual(self.download(file), digest)


if __name__ == "__main__":
    if not os.path.exists(BINARY):
        sys.exit(77)
    unittest.main(verbosity=2)
