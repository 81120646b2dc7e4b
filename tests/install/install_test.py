"""`cmake --install`: the tree may be moved and runs where it lies; configuring needs no network."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ranks"))
import harness  # noqa: E402

SMALL = ["--kv-cache-memory-bytes", 64 << 20, "--max-model-len", 512]
QUESTION = ["--chat", "--prompt", "What is the capital of France?", "--max-tokens", 12]


def build_folder():
    folder = pathlib.Path(harness.binary()).parents[1]
    if not (folder / "cmake_install.cmake").exists():
        raise unittest.SkipTest(f"{folder} is no build of CMake's")
    return folder


def cached(name):
    """A variable of the build's cache."""
    found = re.search(rf"^{name}:\w+=(.*)$", (build_folder() / "CMakeCache.txt").read_text(), re.MULTILINE)
    return found.group(1) if found else ""


def dynamic(path, tag):
    text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True, timeout=60).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


class MovedTree(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        harness.smollm()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.installed, cls.tree = pathlib.Path(folder.name) / "first", pathlib.Path(folder.name) / "moved/here"
        done = subprocess.run(["cmake", "--install", build_folder(), "--prefix", cls.installed],
                              capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        cls.tree.parent.mkdir()
        cls.installed.rename(cls.tree)
        cls.program = cls.tree / "bin/llm-dist"

    def run_program(self, *arguments, prefix=()):
        env = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "LLM_DIST_MODULE_DIR")}
        return subprocess.run([*prefix, self.program, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                              stdin=subprocess.DEVNULL, env=env, cwd="/")

    def test_plan(self):
        done = self.run_program("plan", harness.smollm(), "--tp", 3)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("KV per token", done.stdout)

    def test_generate(self):
        done = self.run_program("generate", harness.smollm(), *QUESTION, *SMALL)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Paris", done.stdout)

    def test_two_ranks_find_the_module_of_the_tree(self):
        if not (self.tree / "lib/llm-dist/libllm_dist_mpi.so").exists():
            self.skipTest("built without MPI")
        done = self.run_program("generate", harness.smollm(), *QUESTION, *SMALL, "--tp", 2, "--rendezvous", "mpi",
                                prefix=harness.mpirun(2))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Paris", done.stdout)

    def test_libraries(self):
        self.assertEqual(dynamic(self.program, "RUNPATH"), ["$ORIGIN/../lib/llm-dist"])
        needed = dynamic(self.program, "NEEDED")
        self.assertTrue(needed)
        for library in needed:
            self.assertNotRegex(library, r"libmpi|libopen-|libcuda|libcublas|libnccl|libpmix")
        listed = subprocess.run(["ldd", self.program], capture_output=True, text=True, timeout=60).stdout
        self.assertIn(f"libdnnl.so.3 => {self.program.parent}/../lib/llm-dist/libdnnl.so.3", listed)
        self.assertNotIn("not found", listed)
        for library in self.tree.glob("lib/llm-dist/libllm_dist_*.so"):
            # Beside itself first; then the folders of the site's MPI, CUDA and NCCL, and nothing of the build.
            own, *others = dynamic(library, "RUNPATH")[0].split(":")
            self.assertTrue(own.startswith("$ORIGIN"), library)
            for path in others:
                self.assertTrue(path.startswith("/") or path.startswith("$ORIGIN"), f"{library}: {path!r}")
                self.assertFalse(path.startswith(str(build_folder())), path)

    def test_completions_man_pages_and_module_file(self):
        for name in ("bash-completion/completions/llm-dist", "zsh/site-functions/_llm-dist",
                     "fish/vendor_completions.d/llm-dist.fish", "man/man1/llm-dist.1", "man/man1/llm-dist-serve.1"):
            self.assertGreater((self.tree / "share" / name).stat().st_size, 500, name)
        self.assertEqual((self.tree / "share/bash-completion/completions/llm-dist").read_text(),
                         self.run_program("completion", "bash").stdout)

    def test_scripts_for_mpirun_and_slurm(self):
        scripts = self.tree / "share/llm-dist"
        self.assertEqual({path.name for path in (scripts / "slurm").iterdir()},
                         {path.name for path in (harness.ROOT / "launch/slurm").iterdir()})
        with tempfile.TemporaryDirectory() as stub:
            (pathlib.Path(stub) / "mpirun").write_text('#!/bin/sh\necho "$@"\n')
            (pathlib.Path(stub) / "mpirun").chmod(0o755)
            done = subprocess.run([scripts / "mpirun.sh", "/dev/null", "doctor", "--json"], capture_output=True, text=True,
                                  timeout=60, env={"PATH": f"{stub}:/usr/bin:/bin"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("--hostfile /dev/null "), done.stdout)
        self.assertTrue(done.stdout.endswith(" llm-dist doctor --json\n"), done.stdout)

    def test_nothing_names_where_it_was_first(self):
        for path in self.tree.rglob("*"):
            if path.is_file() and path.suffix != ".2":
                self.assertNotIn(str(self.installed).encode(), path.read_bytes(), path)


class Configure(unittest.TestCase):
    def test_without_a_network(self):
        alone = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else [])]
        if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
            self.skipTest("no network namespaces here")
        with tempfile.TemporaryDirectory() as folder:
            settings = [f"-D{name}={cached(name)}" for name in ("LLM_DIST_DEPS_DIR", "LLM_DIST_TEXT_ARCHIVE")]
            done = subprocess.run([*alone, "cmake", "-S", harness.ROOT, "-B", folder, "-G", cached("CMAKE_GENERATOR"),
                                   "-DLLM_DIST_TESTS=OFF", "-DLLM_DIST_CUDA=OFF", *settings],
                                  capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    harness.main()
