"""Completions and man pages: each shell completes what the program's own --help lists, and roff renders every page."""
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ranks"))
import harness  # noqa: E402
from harness import run  # noqa: E402

COMMANDS = (["serve"], ["generate"], ["chat"], ["plan"], ["convert"], ["doctor"], ["bench"], ["bench", "latency"],
            ["bench", "throughput"], ["bench", "serve"], ["bench", "kernels"], ["bench", "load"], ["bench", "comm"],
            ["coordinator"], ["submit"], ["jobs"], ["logs"], ["cancel"], ["top"], ["completion"])


def flags_of(*command):
    """The long flags of a command, by its --help."""
    done = run([*command, "--help"])
    assert done.returncode == 0, done.stderr
    text = done.stdout.split("Examples:")[0]
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s+(\w+,)?-", line)]
    flags = {name for line in lines for name in re.findall(r"--[a-z][a-z-]*", line.split()[0])}
    assert flags, f"no flags of {command}"
    return flags


def needs(program):
    if shutil.which(program) is None:
        raise unittest.SkipTest(f"{program} is not installed")


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, shell, name=None):
        done = run(["completion", shell])
        self.assertEqual(done.returncode, 0, done.stderr)
        path = self.folder / (name or f"llm-dist.{shell}")
        path.write_text(done.stdout)
        return path


class Bash(Folder):
    def completions(self, *words):
        """As readline hands the words over: --flag=value in three."""
        program = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _llm_dist; '
                   'printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "--norc", "-c", program, "bash", str(self.script("bash")), "llm-dist", *words],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_flags_by_their_beginning(self):
        found = self.completions("serve", "--max-")
        self.assertEqual(set(found), {flag for flag in flags_of("serve") if flag.startswith("--max-")})
        self.assertIn("--max-model-len", found)
        self.assertEqual(len(found), len(set(found)))

    def test_every_flag_of_every_command(self):
        for command in COMMANDS:
            with self.subTest(command=command):
                self.assertEqual({flag for flag in self.completions(*command, "-") if flag.startswith("--")},
                                 flags_of(*command))

    def test_commands_and_those_below_them(self):
        self.assertIn("serve", self.completions("s"))
        self.assertIn("doctor", self.completions(""))
        self.assertNotIn("keep", self.completions(""))
        self.assertLessEqual({"latency", "throughput", "kernels", "load", "comm"}, set(self.completions("bench", "")))
        self.assertEqual(self.completions("bench", "lat"), ["latency"])

    def test_values(self):
        self.assertEqual(self.completions("serve", "model.gguf", "--device", "c"), ["cpu", "cuda"])
        self.assertEqual(self.completions("serve", "--device", "=", "cu"), ["cuda"])
        self.assertEqual(set(self.completions("serve", "--device", "=")), {"auto", "cpu", "cuda"})
        self.assertEqual(self.completions("serve", "--port", ""), [])
        self.assertEqual(self.completions("completion", ""), ["bash", "zsh", "fish"])
        self.assertEqual(self.completions("comp"), ["completion"])

    def test_a_word_of_another_command_changes_nothing(self):
        self.assertIn("--idempotency-key", self.completions("submit", "serve", "--idem"))
        self.assertEqual(self.completions("submit", "serve", "--gpu-mem"), [])

    def test_shellcheck(self):
        needs("shellcheck")
        done = subprocess.run(["shellcheck", "-s", "bash", self.script("bash")], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.stdout, "")


class Zsh(Folder):
    """Zsh completes only for a terminal: it gets one, and a tabulator."""

    def complete(self, before, after):
        needs("zsh")
        setup = (f"{before} autoload -Uz compinit; compinit -u -d {self.folder}/dump; {after} "
                 "setopt no_beep; LISTMAX=1000; PS1='rea''dy> '\n")
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM="dumb", COLUMNS="200", LINES="500")
            os.execvp("zsh", ["zsh", "-f", "-i"])
        try:
            os.write(terminal, setup.encode())
            self.expect(terminal, "ready> ")
            os.write(terminal, b"llm-dist serve --max-\t\t")
            for flag in sorted(flag for flag in flags_of("serve") if flag.startswith("--max-")):
                self.expect(terminal, flag)
            os.write(terminal, b"\x15")
            os.write(terminal, b"llm-dist bench la\t")
            self.expect(terminal, "latency")
        finally:
            os.close(terminal)
            os.waitpid(pid, 0)

    def test_found_by_compinit(self):
        self.script("zsh", "_llm-dist")
        self.complete(f"fpath=({self.folder} $fpath);", "")

    def test_sourced(self):
        self.complete("", f"source {self.script('zsh')};")

    def expect(self, terminal, words):
        self.seen = getattr(self, "seen", "")
        deadline = time.monotonic() + 60
        while words not in self.seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([terminal], [], [], left)[0]:
                self.fail(f"{words!r} is not in {self.seen!r}")
            self.seen += os.read(terminal, 65536).decode(errors="replace").replace("\r", "")


class Fish(Folder):
    def completions(self, line):
        needs("fish")
        done = subprocess.run(["fish", "--no-config", "-c", 'source $argv[1]; complete -C $argv[2]',
                               str(self.script("fish")), line],
                              capture_output=True, text=True, timeout=60, env={**os.environ, "HOME": str(self.folder)})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [found.split("\t")[0] for found in done.stdout.splitlines()]

    def test_flags_by_their_beginning(self):
        self.assertEqual(set(self.completions("llm-dist serve --max-")),
                         {flag for flag in flags_of("serve") if flag.startswith("--max-")})

    def test_commands_and_values(self):
        self.assertIn("serve", self.completions("llm-dist s"))
        self.assertEqual(self.completions("llm-dist bench la"), ["latency"])
        self.assertEqual(self.completions("llm-dist serve --device c"), ["cpu", "cuda"])
        self.assertEqual(set(self.completions("llm-dist completion ")), {"bash", "zsh", "fish"})
        self.assertNotIn("--gpu-memory-utilization", self.completions("llm-dist submit serve --gpu"))


class ManPages(Folder):
    def setUp(self):
        super().setUp()
        done = run(["man", "--output-dir", self.folder])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.pages = sorted(self.folder.glob("*.1"))

    def test_a_page_a_command_and_no_hidden_one(self):
        names = {page.name for page in self.pages}
        for command in ([], *COMMANDS):
            self.assertIn("-".join(["llm-dist", *command]) + ".1", names)
        self.assertNotIn("llm-dist-keep.1", names)
        self.assertEqual(run(["man", "bench", "latency"]).stdout,
                         (self.folder / "llm-dist-bench-latency.1").read_text())

    def test_groff_takes_every_page(self):
        needs("groff")
        for page in self.pages:
            with self.subTest(page=page.name):
                done = subprocess.run(["groff", "-ww", "-man", "-Tutf8", page], capture_output=True, text=True,
                                      timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_mandoc_takes_every_page(self):
        needs("mandoc")
        for page in self.pages:
            with self.subTest(page=page.name):
                done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", page], capture_output=True, text=True,
                                      timeout=60)
                # A page that CMake makes carries no date: it would differ from build to build.
                self.assertEqual([line for line in done.stdout.splitlines() if "missing date" not in line], [])

    def test_man_shows_every_flag_as_it_is_typed(self):
        needs("man")
        for command in COMMANDS:
            with self.subTest(command=command):
                page = self.folder / ("-".join(["llm-dist", *command]) + ".1")
                done = subprocess.run(["man", "-l", page], capture_output=True, text=True, timeout=60,
                                      env={**os.environ, "MANWIDTH": "200", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"})
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                shown = set(re.findall(r"--[a-z][a-z-]*", done.stdout))
                self.assertLessEqual(flags_of(*command), shown)

    def test_an_unknown_command(self):
        done = run(["man", "genrate"])
        self.assertEqual(done.returncode, 1)
        self.assertIn("genrate", done.stderr)


if __name__ == "__main__":
    harness.main()
