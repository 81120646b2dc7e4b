"""Every command of README.md, docs/ and examples/: its flags are those of the program's own parser, its scripts, files,
targets and presets exist, its URLs are routes. running_test.py runs what can be run in a moment.

A block in which nothing can be checked stands in unchecked.txt, with the reason."""
import json
import pathlib
import re
import tempfile
import unittest

import command_checks
import shell_blocks
from command_checks import ROOT, Mistake, harness

DOCUMENTS = ["README.md", *sorted(str(path.relative_to(ROOT)) for folder in ("docs", "examples")
                                  for path in (ROOT / folder).glob("**/*.md"))]
COMMAND = re.compile(  # in prose: with something behind it
    r"(?:\w+=\w* )*(?:llm-dist|mpirun|srun|sbatch|curl|cmake|python3|(?:\./)?(?:scripts|launch|tests)/\S+) ")
LANGUAGES = ("", "sh", "text", "json", "toml", "python", "cpp")


def blocks():
    return [block for name in DOCUMENTS for block in shell_blocks.blocks_of(name, command_checks.read(name))]


def unchecked():
    """{(document, first line of a block): why nothing in it is checked}"""
    entries = {}
    for line in (pathlib.Path(__file__).parent / "unchecked.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            document, first, reason = line.split(" | ")
            entries[document, first] = reason
    return entries


def check_block(block):
    """Whether anything in it was checked."""
    checked = [command_checks.check(words) for typed in shell_blocks.typed_lines(block)
               for words in shell_blocks.commands_of(typed.text)]
    return any(checked)


class Blocks(unittest.TestCase):
    def test_every_shell_block_can_be_what_it_says(self):
        excused = unchecked()
        for block in blocks():
            with self.subTest(block.where()):
                self.assertIn(block.language, LANGUAGES)
                if not block.is_shell():
                    continue
                entry = excused.pop((block.document, block.text.splitlines()[0]), None)
                try:
                    checked = check_block(block)
                except Mistake as mistake:
                    self.fail(f"{mistake}\nOutput and pictures are blocks of `text`.")
                self.assertNotEqual(checked, entry is not None,
                                    "it stands in unchecked.txt, and need not" if checked else
                                    "nothing in it can be checked: give the reason in tests/docs/unchecked.txt")
        self.assertEqual(excused, {}, "unchecked.txt names blocks that are not there")

    def test_commands_in_prose(self):
        count = 0
        for name in DOCUMENTS:
            for span in filter(COMMAND.match, shell_blocks.spans_of(command_checks.read(name))):
                count += 1
                with self.subTest(f"{name}: {span}"):
                    self.check_span(span)
        self.assertGreater(count, 20)

    def check_span(self, span):
        for words in shell_blocks.commands_of(span):
            names = command_checks.launched(words) or []
            named = names and all(re.fullmatch("[a-z]+", one) for one in names)  # only spoken of
            if not (named and command_checks.is_command(tuple(names))) and "COMMAND" not in names:
                command_checks.check(words)

    def test_json_toml_and_python_can_be_read(self):
        for block in blocks():
            with self.subTest(block.where()):
                if block.language == "json":
                    json.loads(block.text)
                elif block.language == "python":
                    compile(block.text, block.where(), "exec")
                elif block.language == "toml":
                    self.read_as_config_file(block.text)

    def read_as_config_file(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(text)
            file.flush()
            command_checks.check_arguments(["serve", "--config", file.name])


class TheCheckItself(unittest.TestCase):
    """It notices what it is for."""

    def test_mistakes_are_found(self):
        for line in ("llm-dist serve MODEL --tensor-paralel-size 2", "llm-dist serve", "llm-dist srve MODEL",
                     "llm-dist serve MODEL --tp many", "mpirun -np 2 llm-dist bench latency MODEL --no-such-flag",
                     "echo x | llm-dist chat MODEL --nothing", "scripts/nothing.sh", "scripts/quickstart.sh --nothing",
                     "cmake --preset nothing", "cmake --build build/release --target nothing", "build/asan/tests/nothing",
                     "curl http://127.0.0.1:8000/v1/nothing", "curl -X POST http://127.0.0.1:8000/v1/models",
                     "sbatch launch/slurm/serve.sbatch MODEL --nothing", "launch/mpirun.sh HOSTFILE serve --nothing",
                     "nothing --at-all", "cmake --preset release -D LLM_DIST_NOTHING=ON"):
            with self.subTest(line), self.assertRaises(Mistake):
                for words in shell_blocks.commands_of(line):
                    command_checks.check(words)

    def test_commands_are_known(self):
        self.assertTrue(command_checks.is_command(("bench", "latency")))
        for names in (("nothing",), ("bench", "nothing"), ("serve", "nothing")):
            self.assertFalse(command_checks.is_command(names), names)

    def test_lines_are_read_as_a_shell_reads_them(self):
        block = shell_blocks.Block("", 1, "", "node1$ a \\\n  b # c\nout\n\nnode2$ d | e 'f g' >h && i\n")
        typed = shell_blocks.typed_lines(block)
        self.assertEqual([one.shown for one in typed], [["out", ""], []])
        self.assertEqual([shell_blocks.commands_of(one.text) for one in typed],
                         [[["a", "b"]], [["d"], ["e", "f g"], ["i"]]])


if __name__ == "__main__":
    harness.main()
