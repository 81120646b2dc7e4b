"""Types what README.md, docs/ and examples/ tell their readers to type, where that ends within seconds on a CPU: the text
comes from the documents, but for ports and a smaller cache. What they show is what comes; "…" stands for anything."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.parse
import uuid

import command_checks
import commands_test
import shell_blocks
from command_checks import ROOT, harness

LIMIT_S = 300
QUESTION = "What is the capital of France?"
# A user's cores and memory are their own; here several tests may share them.
SMALL = "--kv-cache-memory-bytes 134217728 --max-model-len 1024"


def typed_in(document, pattern):
    """The one line of the document that matches."""
    lines = [typed for block in shell_blocks.blocks_of(document, command_checks.read(document)) if block.is_shell()
             for typed in shell_blocks.typed_lines(block) if re.search(pattern, typed.text)]
    if len(lines) != 1:
        raise AssertionError(f"{document}: {len(lines)} lines match {pattern}; one is to be tried")
    return lines[0]


def as_shown(shown):
    """A pattern; runs of blanks and line ends count as one blank."""
    return re.escape(" ".join(" ".join(shown).split())).replace("…", ".*")


class Desk:
    """A folder that looks as the documents expect it, and a shell in it."""

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="llm-dist-docs-"))
        self.mark = uuid.uuid4().hex
        (self.folder / "bin").mkdir()
        (self.folder / "build/release/launch").mkdir(parents=True)
        for place in ("bin/llm-dist", "build/release/launch/llm-dist"):
            (self.folder / place).symlink_to(harness.binary())
        (self.folder / ".models").mkdir()
        for place in (".models/SmolLM2-135M-Instruct.Q4_1.gguf", "model.gguf"):
            (self.folder / place).symlink_to(harness.smollm())
        (self.folder / "examples").symlink_to(ROOT / "examples")
        self.env = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", harness.MARK: self.mark,
                    "XDG_STATE_HOME": str(self.folder), "MANPAGER": "cat", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        return self

    def __exit__(self, *_):
        for pid in harness.processes_marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def type(self, text, stdin=""):
        return subprocess.run(["bash", "-c", text], cwd=self.folder, env=self.env, input=stdin, timeout=LIMIT_S,
                              capture_output=True, text=True)

    @contextlib.contextmanager
    def background(self, text):
        """What is typed goes on while the body runs; the end is waited for, and kept in `self.code`."""
        log = self.folder / "log"
        with open(log, "wb") as out:
            process = subprocess.Popen(["bash", "-c", f"exec {text}"], cwd=self.folder, env=self.env, stdout=out,
                                       stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            yield process
            self.code = process.wait(LIMIT_S)
        except BaseException:
            print(log.read_text(errors="replace"))
            raise

    def url_of(self, process, file):
        """What a server wrote to its --endpoint-file."""
        def there():
            if process.poll() is not None:
                raise AssertionError(f"it ended with {process.returncode} before it listened")
            return (self.folder / file).exists()
        harness.wait_until(there, LIMIT_S, "it listens")
        return urllib.parse.urlparse((self.folder / file).read_text().strip()).netloc


class Documents(unittest.TestCase):
    def setUp(self):
        self.desk = self.enterContext(Desk())

    def types(self, text, stdin="", codes=(0,)):
        done = self.desk.type(text, stdin)
        self.assertIn(done.returncode, codes, f"{text}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def shows(self, typed, output):
        self.assertRegex(" ".join(output.split()), re.compile(as_shown(typed.shown), re.DOTALL), typed.text)

    def test_plans(self):
        count = 0
        for block in filter(shell_blocks.Block.is_shell, commands_test.blocks()):
            for typed in shell_blocks.typed_lines(block):
                if re.search(r"llm-dist plan \.models/", typed.text):
                    count += 1
                    with self.subTest(block.where()):
                        self.shows(typed, self.types(typed.text, codes=(0, 1)))
        self.assertGreaterEqual(count, 3)

    def test_one_question(self):
        for document, pattern in (("examples/01-generate/README.md", "generate"),
                                  ("docs/operations.md", r"^echo .* llm-dist chat")):
            with self.subTest(document):
                self.assertIn("Paris", self.types(f"{typed_in(document, pattern).text} {SMALL}"))

    def test_completions_and_man_pages(self):
        self.types(typed_in("docs/install.md", "completion bash").text)
        if shutil.which("man"):
            self.assertIn("--batch", self.types(typed_in("docs/install.md", r"man -l -").text))
        self.types(typed_in("docs/install.md", "--output-dir").text)
        self.assertTrue((self.desk.folder / "DIR").is_dir())

    def test_doctor(self):
        typed = typed_in("docs/launch.md", "doctor")
        output = self.types(typed.text, codes=(0, 3, 4))
        ranks = re.search(r"ok\s+ranks\s+[^;]*;", "\n".join(typed.shown))[0]
        self.assertIn(" ".join(ranks.split()), " ".join(output.split()))

    def test_a_server_and_its_clients(self):
        example = "examples/02-serve-and-curl/README.md"
        command = f"{typed_in(example, 'serve').text} --port 0 --endpoint-file url {SMALL}"
        with self.desk.background(command) as process:
            address = self.desk.url_of(process, "url")
            def here(text):
                return text.replace("127.0.0.1:8000", address)
            harness.wait_until(lambda: "ready" in self.desk.type(f"curl -s http://{address}/readyz").stdout.split('"'),
                               LIMIT_S, "it is ready", interval_s=0.2)
            self.assertIn("Paris", self.types(here(typed_in("README.md", "^curl").text)))
            chat = typed_in("docs/operations.md", "chat --base-url").text
            self.assertIn("Paris", self.types(here(chat), stdin=QUESTION + "\n"))
            for block in shell_blocks.blocks_of(example, command_checks.read(example)):
                for typed in shell_blocks.typed_lines(block) if block.is_shell() else []:
                    if typed.text.startswith("curl"):  # the last one drains
                        self.shows(typed, self.types(here(typed.text)))
        self.assertEqual(self.desk.code, 0)

    def test_a_coordinator_and_a_batch(self):
        example = "examples/05-batches/README.md"
        blocks = shell_blocks.blocks_of(example, command_checks.read(example))
        start, first_request = blocks[0].text, blocks[1]
        catalogue, _, coordinator = start.partition("\nEND\n")
        self.types(f"{catalogue}\nEND\n".replace('"1024"', '"1024", "--kv-cache-memory-bytes", "134217728"'))
        with self.desk.background(f"{coordinator.strip()} --port 0 --endpoint-file url") as process:
            address = self.desk.url_of(process, "url")
            for typed in shell_blocks.typed_lines(first_request):
                text = typed.text.replace("127.0.0.1:8080", address)
                if text.endswith("/batches/batch-1"):
                    harness.wait_until(lambda: '"completed_at":null' not in self.types(text).replace(" ", ""), LIMIT_S,
                                       "the batch ends", interval_s=0.3)
                self.shows(typed, self.types(text))
            process.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    harness.main()
