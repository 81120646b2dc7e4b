"""Worlds of several "nodes" (nodes.py) that meet over TCP: tensor groups inside a node, stages between nodes."""
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import harness
from nodes import IPV6, Nodes, needs_namespaces

SMALL = ["--kv-cache-memory-bytes", 64 << 20, "--max-model-len", 512, "--threads", 1]
SECRET = {"LLM_DIST_LAUNCH_SECRET": "0123456789abcdef"}
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12,
            "temperature": 0}


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class World:
    """`llm-dist ARGUMENTS… --nnodes …` on each node; one log a node."""

    def __init__(self, nodes, ranks_per_node, arguments, only=None, env=SECRET, more=(), last=()):
        """more: arguments of all nodes; last: of the last one besides."""
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="llm-dist-nodes-"))
        self.uds = str(self.dir / "socket")
        self.processes = []
        count = len(nodes.nodes)
        for number in range(count) if only is None else only:
            command = [*nodes.prefix(number), harness.binary(), *map(str, arguments), "--nnodes", str(count), "--node-rank",
                       str(number), "--nproc-per-node", str(ranks_per_node), "--master-addr", nodes.address(0), *map(str, more)]
            if number == count - 1:
                command += map(str, last)
            if arguments[0] == "serve":
                command += ["--uds", self.uds]
            with open(self.dir / f"log{number}", "wb") as log:
                self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                       env={**os.environ, **env}, start_new_session=True))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            self.kill(process)
        shutil.rmtree(self.dir, ignore_errors=True)

    @staticmethod
    def kill(process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait(30)

    def log(self, number=None):
        paths = [self.dir / f"log{number}"] if number is not None else sorted(self.dir.glob("log*"))
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def request(self, method, path, body=None, timeout=120):
        connection = UnixConnection(self.uds, timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def wait_ready(self, limit_s=harness.STARTUP_S):
        def ready():
            if any(process.poll() is not None for process in self.processes):
                raise AssertionError(f"ended before it was ready:\n{self.log()}")
            try:
                return self.request("GET", "/readyz", timeout=5)[0] == 200
            except OSError:
                return False
        harness.wait_until(ready, limit_s, f"the server is ready:\n{self.log()}", interval_s=0.1)
        return self

    def wait_ends(self, limit_s):
        deadline = time.monotonic() + limit_s
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"still there after {limit_s} s:\n{self.log()}") from None
        return codes


class NodesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        needs_namespaces()

    def serve(self, nodes, ranks_per_node, *layout, **more):
        return World(nodes, ranks_per_node, ["serve", harness.smollm(), "--served-model-name", "m", *layout, *SMALL], **more)

    def answers_paris(self, world):
        status, text = world.request("POST", "/v1/chat/completions", QUESTION)
        self.assertEqual(status, 200, text)
        self.assertIn("Paris", json.loads(text)["choices"][0]["message"]["content"])

    def drains(self, world):
        self.assertEqual(world.request("POST", "/admin/drain")[0], 202)
        self.assertEqual(set(world.wait_ends(60)), {0}, world.log())
        self.assertEqual(harness.our_lines(world.log()), [])

    def test_tensor_groups_inside_and_stages_between_two_nodes(self):
        with Nodes(2) as nodes, self.serve(nodes, 2, "--tp", 2, "--pp", 2) as world:
            world.wait_ready()
            self.assertIn("4 ranks as TP 2 × PP 2", world.log(0))
            self.answers_paris(world)
            self.drains(world)

    def test_four_nodes_choose_a_layout(self):
        with Nodes(4) as nodes, self.serve(nodes, 1) as world:
            world.wait_ready()
            self.assertIn("TP 1 × PP 4", world.log(0))
            self.answers_paris(world)
            self.drains(world)

    def test_nodes_that_were_told_otherwise_are_refused(self):
        for last, words in ((["--block-size", 8], "rank 1 on node1 has --block-size 8, rank 0 on node0 has 16"),
                            (["--max-num-seqs", 8], "rank 1 on node1 has --max-num-seqs 8, rank 0 on node0 has"),
                            (["--dtype", "bf16"], "rank 1 on node1 has --dtype bf16, rank 0 on node0 has f32"),
                            (["--load-format", "dummy"], "rank 1 on node1 has --load-format dummy, rank 0 on node0 has gguf")):
            with self.subTest(last), Nodes(2) as nodes, self.serve(nodes, 1, "--pp", 2, last=last) as world:
                self.assertEqual(world.wait_ends(60), [78, 78], world.log())
                lines = harness.our_lines(world.log())
                self.assertEqual(len(lines), 1, world.log())
                self.assertIn(words, lines[0])

    def test_a_model_that_one_node_lacks(self):
        with Nodes(2) as nodes, tempfile.TemporaryDirectory() as folder:
            there = pathlib.Path(folder) / "model.gguf"
            there.symlink_to(harness.smollm())
            command = ["generate", "--prompt", "x", "--max-tokens", 1, "--pp", 2, *SMALL]
            with World(nodes, 1, [*command, there], only=[0]) as first:
                with World(nodes, 1, [*command, there.with_name("other.gguf")], only=[1]) as second:
                    self.assertEqual(second.wait_ends(60), [78])
                    self.assertEqual(first.wait_ends(60), [78])
                    self.assertIn(f"rank 1 on node1: {folder}/other.gguf: no such file", first.log())

    def test_a_slow_link(self):
        if shutil.which("tc") is None:
            self.skipTest("tc is not installed")
        with Nodes(2) as nodes:
            try:
                nodes.slow_down(1, "2mbit")
            except AssertionError as error:
                self.skipTest(f"this kernel cannot slow a link down: {error}")
            with self.serve(nodes, 1, "--pp", 2) as world:
                world.wait_ready()
                self.answers_paris(world)
                self.drains(world)

    def first_node_names(self, world, words):
        self.assertEqual(world.wait_ends(20)[0], 70, world.log())
        lines = harness.our_lines(world.log(0))
        self.assertEqual(len(lines), 1, world.log())
        self.assertIn(words, lines[0])

    def test_a_partition_ends_both_sides(self):
        with Nodes(2) as nodes, self.serve(nodes, 1, "--pp", 2) as world:
            world.wait_ready()
            nodes.cut(1)
            self.assertEqual(world.wait_ends(12), [70, 70], world.log())
            self.assertIn("rank 1 failed: host node1", world.log(0))
            self.assertIn("rank 0 failed: host node0", world.log(1))
            self.assertIn("its host or the network is down", world.log(0))

    def test_a_node_that_loses_its_power(self):
        with Nodes(2) as nodes, self.serve(nodes, 2, "--tp", 2, "--pp", 2) as world:
            world.wait_ready()
            nodes.cut(1)
            World.kill(world.processes[1])
            self.first_node_names(world, "rank 2 failed: host node1")
            self.assertIn("from any of the 2 ranks of its host", world.log(0))

    def test_a_node_whose_processes_are_killed(self):
        with Nodes(2) as nodes, self.serve(nodes, 1, "--pp", 2) as world:
            world.wait_ready()
            begin = time.monotonic()
            World.kill(world.processes[1])
            self.first_node_names(world, "rank 1 failed: host node1")
            self.assertLess(time.monotonic() - begin, 4)

    def test_doctor_sees_both_nodes(self):
        with Nodes(2) as nodes, World(nodes, 1, ["doctor", "--json", harness.smollm()]) as world:
            codes = world.wait_ends(60)
            report = json.loads(world.log(0))
            self.assertEqual({rank["host"] for rank in report["ranks"]}, {"node0", "node1"})
            self.assertEqual(report["rendezvous"], "tcp")
            self.assertIn(codes[0], (0, 3), world.log())
            self.assertEqual(codes[1], 0)

    def test_doctor_says_who_is_missing(self):
        with Nodes(2) as nodes, World(nodes, 2, ["doctor"], only=[0], more=["--rendezvous-timeout", 5]) as world:
            self.assertEqual(world.wait_ends(30), [5], world.log())
            self.assertIn("2 of 4 ranks are missing", world.log())
            self.assertIn(": 2, 3.", world.log())

    def test_another_secret_is_told(self):
        with Nodes(2) as nodes, World(nodes, 1, ["doctor"], only=[0], more=["--rendezvous-timeout", 10]) as world:
            other = World(nodes, 1, ["doctor"], only=[1], env={"LLM_DIST_LAUNCH_SECRET": "another"})
            with other:
                self.assertEqual(other.wait_ends(30), [5])
                self.assertIn("another launch secret", other.log())
            self.assertEqual(world.wait_ends(30), [5])

    def all_join(self, world):
        """doctor ends with what it has found, so every connection was made."""
        self.assertIn(world.wait_ends(60)[0], (0, 3), world.log())

    def test_ranks_connect_on_the_network_on_which_they_met(self):
        with Nodes(2) as nodes:
            for number, name in enumerate(("uplink0", "wan0")):  # no --interface would fit both
                nodes.add_dead_end(number, name, f"10.98.0.{number + 1}/24")
            for ranks_per_node in (1, 2):
                with self.subTest(ranks_per_node), World(nodes, ranks_per_node, ["doctor"]) as world:
                    self.all_join(world)

    def test_hosts_with_ipv6_only_and_a_bridge_for_containers(self):
        with Nodes(2, IPV6) as nodes:
            for node in nodes.nodes:
                node.run("ip", "link", "add", "docker0", "type", "bridge")
                node.run("ip", "address", "add", "172.17.0.1/16", "dev", "docker0")
                node.run("ip", "link", "set", "docker0", "up")
            with World(nodes, 1, ["doctor"]) as world:
                self.all_join(world)
                self.assertRegex(world.log(0), "network +docker0, eth0")

    def test_the_interface_can_be_named(self):
        with Nodes(2) as nodes:
            for number in range(2):
                nodes.nodes[number].run("ip", "link", "add", "storage0", "type", "veth", "peer", "name", "storage1")
                nodes.nodes[number].run("ip", "address", "add", f"10.98.0.{number + 1}/24", "dev", "storage0")
                nodes.nodes[number].run("ip", "link", "set", "storage0", "up")
            with World(nodes, 1, ["doctor"], more=["--interface", "eth0"]) as world:
                self.assertIn(world.wait_ends(60)[0], (0, 3), world.log())
            with World(nodes, 1, ["doctor"], more=["--interface", "eth7"]) as world:
                self.assertNotIn(0, world.wait_ends(60))
                self.assertIn("there are: lo, eth0, storage0", world.log())


if __name__ == "__main__":
    harness.main()
