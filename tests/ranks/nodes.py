"""Several "nodes" on this machine: network namespaces on one bridge, each with a host name of its own. Needs root."""
import os
import shutil
import signal
import subprocess
import unittest

IPV4 = ("10.99.0.", 24)
IPV6 = ("fd00:99::", 64)


def needs_namespaces():
    if os.geteuid() != 0:
        raise unittest.SkipTest("network namespaces need root")
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            raise unittest.SkipTest(f"{program} is not installed")
    for probe in (["true"], ["ip", "link", "add", "bridge", "type", "bridge"],
                  ["ip", "link", "add", "here", "type", "veth", "peer", "name", "there"]):
        if subprocess.run(["unshare", "--net", "--uts", *probe], capture_output=True, timeout=10).returncode != 0:
            raise unittest.SkipTest(f"this machine allows no `{' '.join(probe)}` in a namespace")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")


class Namespace:
    """Lives as long as its one sleeping process."""

    def __init__(self):
        # The line comes once the namespaces are there.
        self.process = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", "echo; exec sleep 100000"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        self.process.stdout.readline()
        self.prefix = ["nsenter", f"--target={self.process.pid}", "--net", "--uts"]

    def run(self, *command):
        run(*self.prefix, *command)

    def close(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self.process.stdout.close()


class Nodes:
    """Nodes 0, 1… at 10.99.0.1, 10.99.0.2… (or ::1, ::2…), named node0, node1…; their interface is eth0."""

    def __init__(self, count, subnet=IPV4):
        self.spaces = []
        self.subnet = subnet
        try:
            self.switch = Namespace()
            self.spaces.append(self.switch)
            self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
            self.switch.run("ip", "link", "set", "bridge", "up")
            self.nodes = []
            for number in range(count):
                node = Namespace()
                self.spaces.append(node)
                self.nodes.append(node)
                self.switch.run("ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns",
                                str(node.process.pid))
                self.switch.run("ip", "link", "set", f"port{number}", "master", "bridge", "up")
                node.run("hostname", f"node{number}")
                node.run("ip", "address", "add", f"{self.address(number)}/{subnet[1]}", "dev", "eth0",
                         *(["nodad"] if subnet is IPV6 else []))
                node.run("ip", "link", "set", "eth0", "up")
                node.run("ip", "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for space in self.spaces:
            space.close()

    def address(self, number):
        return f"{self.subnet[0]}{number + 1}"

    def prefix(self, number):
        return self.nodes[number].prefix

    def add_dead_end(self, number, name, address):
        """An interface of the node's own, with a network behind it on which nobody else is; for the default route too."""
        node = self.nodes[number]
        node.run("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        node.run("ip", "address", "add", address, "dev", name)
        for end in (name, f"{name}-end"):
            node.run("ip", "link", "set", end, "up")
        node.run("ip", "route", "add", "default", "dev", name)

    def cut(self, number):
        """As a cable that is pulled: nothing arrives any more, and nobody is told."""
        self.switch.run("ip", "link", "set", f"port{number}", "nomaster")

    def slow_down(self, number, rate):
        self.switch.run("tc", "qdisc", "add", "dev", f"port{number}", "root", "tbf", "rate", rate, "burst", "32kb",
                        "latency", "400ms")
