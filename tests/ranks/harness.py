"""Runs llm-dist as its users do, under mpirun, for tests: processes, HTTP, and what is left behind.

Every wait has a limit, and a World ends all its processes when its `with` block does. Environment:
  LLM_DIST_BINARY   the program under test; otherwise build/release/launch/llm-dist
  LLM_DIST_MODEL    SmolLM2-135M-Instruct as GGUF; otherwise .models/SmolLM2-135M-Instruct.Q4_1.gguf
  LLM_DIST_FULL     set: the long versions too
"""
import http.client
import json
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.parse
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
FULL = bool(os.environ.get("LLM_DIST_FULL"))
STARTUP_S = 300  # until a server is ready, on a machine that others load
REQUEST_S = 600
MARK = "LLM_DIST_TEST_WORLD"
OPEN_MPI_FOLDERS = ("OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory",
                    "OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base")


def binary():
    given = os.environ.get("LLM_DIST_BINARY")
    if given:
        return os.path.abspath(given)
    built = ROOT / "build/release/launch/llm-dist"
    if not built.exists():
        raise unittest.SkipTest("no llm-dist is built: set LLM_DIST_BINARY")
    return str(built)


def smollm():
    path = os.environ.get("LLM_DIST_MODEL") or str(ROOT / ".models/SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(path):
        raise unittest.SkipTest(f"{path} is not here: set LLM_DIST_MODEL")
    return path


def needs_mpirun():
    if shutil.which("mpirun") is None:
        raise unittest.SkipTest("mpirun is not installed")


def needs_serve():
    if "  serve " not in run(["--help"]).stdout:
        raise unittest.SkipTest("this llm-dist has no `serve`")


def mpirun(np, *options):
    needs_mpirun()
    command = ["mpirun", "-np", str(np), "--oversubscribe", "--bind-to", "none", *options]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    return command


def run(arguments, np=None, env=None, timeout=300, prefix=(), mpi_options=(), **more):
    """The program once, to its end; stdout and stderr as text."""
    command = [*prefix, *(mpirun(np, *mpi_options) if np else []), binary(), *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, **(env or {})}, timeout=timeout, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, **more)


def our_lines(text):
    """The lines that llm-dist prints about errors: one for the world, from one rank."""
    return [line for line in text.splitlines() if line.startswith("llm-dist: ")]


def wait_until(condition, limit_s, what, interval_s=0.02):
    """`what` is awaited: a text, or a function that makes one when the time is up."""
    deadline = time.monotonic() + limit_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s} s: {what() if callable(what) else what}")
        time.sleep(interval_s)
    return result


class Counting(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def main():
    """unittest's, but 77 (ctest's "skipped") when all was skipped, and 1 when no test has the name that was asked for."""
    runner = unittest.TextTestRunner(verbosity=2, resultclass=Counting)
    result = unittest.main(exit=False, testRunner=runner).result
    nothing_ran = result.skipped and result.passed == 0
    raise SystemExit(1 if result.testsRun == 0 or not result.wasSuccessful() else 77 if nothing_ran else 0)


def free_ports(count):
    """Ports that nobody listens at. The kernel gives them to nobody by itself, in the time until they are used."""
    found = []
    for port in random.sample(range(16000, 32000), 100 + count):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                found.append(port)
            except OSError:
                pass
        if len(found) == count:
            return found
    raise AssertionError("no port is free")


def free_port():
    return free_ports(1)[0]


# --- processes ---

def environment_of(pid):
    try:
        raw = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in raw.decode(errors="replace").split("\0") if "=" in entry)


def state_of(pid):
    """The letter of /proc/PID/stat: R, S, T (stopped), Z…; None when there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def executable_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return ""


def status_bytes(pid, field):
    """VmRSS, RssAnon… of /proc/PID/status, in bytes."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} of process {pid}")


def processes_marked(mark):
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if environment_of(pid).get(MARK) == mark and state_of(pid) not in (None, "Z")]


def shared_memory():
    """Named shared memory, but for what Open MPI and other tests make."""
    others = ("vader_segment", "llm-dist-store-", "llm-dist-test-")
    return {name for name in os.listdir("/dev/shm") if not name.startswith(others)}


class Exit:
    """Watches a process that is not our child; pidfd, so that a reused pid cannot be mistaken for it."""

    def __init__(self, pid):
        self.fd = os.pidfd_open(pid)

    def within(self, limit_s):
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(max(0, limit_s) * 1000))

    def __del__(self):
        if hasattr(self, "fd"):
            os.close(self.fd)


# Around each rank: keeps its exit code in a file, then ends as the rank did. mpirun's SIGTERM, which goes to the
# whole process group, must not end the shell before it has written.
EXIT_CODE_SHELL = (
    'trap : TERM INT; dir=$1; shift; "$@"; code=$?; echo $code > "$dir/exit.$OMPI_COMM_WORLD_RANK"; '
    "if [ $code -gt 128 ]; then trap - TERM INT; kill -$((code - 128)) $$; fi; exit $code")


class World:
    """`mpirun -np N llm-dist ARGUMENTS…` in a process group of its own; its output goes to `log`."""

    def __init__(self, np, arguments, env=None, mpi_options=(), record_exits=False):
        self.np = np
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="llm-dist-test-"))
        self.log_path = self.dir / "log"
        self.mark = uuid.uuid4().hex
        self.shm_before = shared_memory()
        # What Open MPI cannot remove when it is killed goes with the world.
        self.shm_dir = tempfile.mkdtemp(prefix="llm-dist-test-", dir="/dev/shm")
        places = {name: self.shm_dir for name in OPEN_MPI_FOLDERS}
        command = mpirun(np, *mpi_options)
        if record_exits:
            command += ["sh", "-c", EXIT_CODE_SHELL, "rank", str(self.dir)]
        command += [binary(), *map(str, arguments)]
        self.executable = os.path.realpath(binary())
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **places, **(env or {}), MARK: self.mark})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        for folder in (self.dir, self.shm_dir):
            shutil.rmtree(folder, ignore_errors=True)

    def kill(self):
        for pid in [self.process.pid, *processes_marked(self.mark)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(30)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def ranks(self):
        """{rank: pid} of the ranks that are there now."""
        pids = {}
        for pid in processes_marked(self.mark):
            # One that has just been started, or has just ended, shows no environment.
            rank = environment_of(pid).get("OMPI_COMM_WORLD_RANK") if executable_of(pid) == self.executable else None
            if rank is not None:
                pids[int(rank)] = pid
        return pids

    def wait_ranks(self, limit_s=60):
        return wait_until(lambda: len(ranks := self.ranks()) == self.np and ranks, limit_s,
                          f"{self.np} ranks are there:\n{self.log()}")

    def wait_log(self, text, limit_s=STARTUP_S):
        def there():
            if text in self.log():
                return True
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before it printed {text!r}:\n{self.log()}")
            return False
        wait_until(there, limit_s, f"{text!r} in the log")

    def wait_end(self, limit_s):
        """mpirun's exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"mpirun still runs after {limit_s} s:\n{self.log()}") from None

    def exit_code(self, rank, limit_s=30):
        """With record_exits: of this rank; more than 128 is a signal."""
        path = self.dir / f"exit.{rank}"
        text = wait_until(lambda: path.exists() and path.read_text().strip(), limit_s, f"rank {rank} leaves an exit code")
        return int(text)

    def leftovers(self):
        """What should not be there once all has ended; processes get a moment to be reaped."""
        deadline = time.monotonic() + 20
        while (found := processes_marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        left = [f"process {pid} {executable_of(pid)} ({state_of(pid)})" for pid in found]
        return left + [f"/dev/shm/{name}" for name in sorted(shared_memory() - self.shm_before)]


class Server(World):
    """`llm-dist serve` on a port of its own."""

    def __init__(self, np, model, arguments=(), **more):
        self.endpoint_dir = tempfile.mkdtemp(prefix="llm-dist-endpoint-")
        self.endpoint_file = pathlib.Path(self.endpoint_dir) / "url"
        self.address = None
        super().__init__(np, ["serve", model, "--port", 0, "--endpoint-file", self.endpoint_file,
                              "--served-model-name", "m", *arguments], **more)

    def __exit__(self, *what):
        super().__exit__(*what)
        shutil.rmtree(self.endpoint_dir, ignore_errors=True)

    def wait_listening(self, limit_s=STARTUP_S):
        def there():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before it listened:\n{self.log()}")
            return self.endpoint_file.exists()
        wait_until(there, limit_s, "the server listens")
        url = urllib.parse.urlparse(self.endpoint_file.read_text().strip())
        self.address = (url.hostname, url.port)
        return self

    def wait_ready(self, limit_s=STARTUP_S):
        self.wait_listening(limit_s)
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before it was ready:\n{self.log()}")
            try:
                return self.get("/readyz")[0] == 200
            except ConnectionError:
                return False  # ended just now: the next look says with what
        wait_until(ready, limit_s, "/readyz is 200", interval_s=0.1)
        return self

    def connect(self, timeout=REQUEST_S):
        return http.client.HTTPConnection(*self.address, timeout=timeout)

    def get(self, path, timeout=30):
        """(status, text)"""
        connection = self.connect(timeout)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def post(self, path, body, timeout=REQUEST_S):
        """(status, JSON)"""
        connection = self.connect(timeout)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            return response.status, json.loads(text) if text else {}
        finally:
            connection.close()

    def stream(self, path, body, timeout=REQUEST_S):
        return Stream(self, path, body, timeout)

    def wait_idle(self, kv_usage, limit_s=60):
        """No sequence runs, and the blocks are back: those of the last steps once these have retired."""
        wait_until(lambda: self.metric("num_requests_running") == 0 and self.metric("kv_cache_usage_perc") == kv_usage,
                   limit_s, lambda: f"{self.metric('num_requests_running')} running, "
                                    f"{self.metric('kv_cache_usage_perc')} of the KV blocks in use, {kv_usage} awaited")

    def metric(self, name):
        """Sum over the label sets of a metric; its prefix left out."""
        values = []
        for line in self.get("/metrics")[1].splitlines():
            if line.split("{")[0].split(" ")[0] == "llm_dist_" + name:
                values.append(float(line.rsplit(" ", 1)[1]))
        if not values:
            raise AssertionError(f"/metrics has no llm_dist_{name}")
        return sum(values)


class Stream:
    """One streamed request, read on a thread of its own."""

    def __init__(self, server, path, body, timeout=REQUEST_S):
        self.events = []  # JSON objects
        self.done = False  # "[DONE]" came
        self.ended = threading.Event()
        self.started = threading.Event()  # the first event came
        self.failure = None  # how the connection broke
        self.status = None
        self.cancel_after = None
        self.connection = server.connect(timeout)
        self.thread = threading.Thread(target=self._read, args=(path, {**body, "stream": True}), daemon=True)
        self.thread.start()

    def _read(self, path, body):
        try:
            self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = self.connection.getresponse()
            self.status = response.status
            if self.status != 200:
                self.events.append(json.loads(response.read().decode() or "{}"))
                return
            while line := response.readline():
                if not line.startswith(b"data:"):
                    continue
                data = line[len(b"data:"):].strip()
                if data == b"[DONE]":
                    self.done = True
                    continue
                self.events.append(json.loads(data))
                self.started.set()
                if self.cancel_after is not None and len(self.events) >= self.cancel_after:
                    return
        except (OSError, http.client.HTTPException, ValueError) as failure:
            self.failure = failure
        finally:
            self.connection.close()
            self.started.set()
            self.ended.set()

    def wait(self, limit_s=REQUEST_S):
        if not self.ended.wait(limit_s):
            raise AssertionError(f"the stream has not ended after {limit_s} s; {len(self.events)} events so far")
        return self

    def error(self):
        """The error event, or None."""
        return next((event["error"] for event in self.events if "error" in event), None)

    def choices(self):
        return [choice for event in self.events for choice in event.get("choices", [])]

    def text(self):
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in self.choices())

    def finish_reason(self):
        return next((c["finish_reason"] for c in self.choices() if c.get("finish_reason")), None)
