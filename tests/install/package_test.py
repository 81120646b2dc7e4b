"""cpack: the archive runs with nothing but the C library and the compiler's own, the Debian packages depend on the rest."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ranks"))
import harness  # noqa: E402
from install_test import QUESTION, SMALL, build_folder  # noqa: E402

HOSTS = re.compile(r"linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so")


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        harness.smollm()
        for program in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file"):
            if shutil.which(program) is None:
                raise unittest.SkipTest(f"{program} is not installed")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        # Packed faster than for handing on.
        done = subprocess.run(["cpack", "--config", build_folder() / "CPackConfig.cmake", "-B", cls.folder,
                               "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip"],
                              cwd=cls.folder, capture_output=True, text=True, timeout=800)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        archive, = cls.folder.glob("llm-dist-*-linux-*.tar.gz")
        subprocess.run(["tar", "-xzf", archive, "-C", cls.folder], check=True, timeout=300)
        cls.tree = cls.folder / archive.name.removesuffix(".tar.gz")

    def test_the_archive_carries_its_libraries(self):
        listed = subprocess.run(["ldd", self.tree / "bin/llm-dist"], capture_output=True, text=True, timeout=60).stdout
        self.assertNotIn("not found", listed)
        for line in listed.splitlines():
            if not HOSTS.search(line.split()[0]):
                self.assertIn(f"=> {self.tree}/bin/../lib/llm-dist/", line)

    def test_the_archive_runs(self):
        done = subprocess.run(["env", "-i", self.tree / "bin/llm-dist", "generate", harness.smollm(),
                               *map(str, [*QUESTION, *SMALL])], capture_output=True, text=True, timeout=300, cwd="/")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Paris", done.stdout)

    def test_licences_of_all_that_is_inside(self):
        folder = self.tree / "share/doc/llm-dist/licences"
        index = (folder / "README").read_text()
        for part in ("oneDNN", "openssl", "spdlog", "fmt", "sqlite", "prometheus", "highway", "json", "CLI11", "tomlplusplus",
                     "gomp", "crate tokenizers", "crate minijinja"):
            self.assertRegex(index, rf"(?m)^{part} ")
        for name in re.findall(r"(?m): (\S+)", index):
            self.assertGreater((folder / name).stat().st_size, 500, name)
        # Each library that the archive carries, beside the program's own, is named.
        for path in self.tree.glob("lib/llm-dist/lib*.so*"):
            known = re.match(r"lib(dnnl|gomp|hwy|prometheus-cpp|ssl|crypto|spdlog|fmt|sqlite3|llm_dist)", path.name)
            self.assertIsNotNone(known, path.name)

    def control(self, name):
        package, = self.folder.glob(f"{name}_*.deb")
        fields = subprocess.run(["dpkg-deb", "-f", package], capture_output=True, text=True, check=True).stdout
        listed = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout
        return dict(line.split(": ", 1) for line in fields.splitlines() if re.match(r"\w", line)), listed

    def test_debian_packages(self):
        fields, listed = self.control("llm-dist")
        # Ubuntu's names of libraries whose time_t became wider end in t64.
        depends = {word.split()[0].removesuffix("t64") for word in fields["Depends"].split(",")}
        self.assertLessEqual({"libc6", "libssl3", "libsqlite3-0", "libgomp1"}, depends)
        self.assertTrue(any(name.startswith("libspdlog") for name in depends))
        self.assertFalse([name for name in depends if "mpi" in name or "cuda" in name])
        self.assertEqual(fields["Recommends"], "llm-dist-mpi")
        for path in ("./usr/bin/llm-dist", "./usr/share/man/man1/llm-dist-serve.1",
                     "./usr/share/bash-completion/completions/llm-dist", "./usr/share/modulefiles/llm-dist/",
                     "./usr/lib/llm-dist/libdnnl.so.3.2",
                     "./usr/share/doc/llm-dist/licences/rust-crates.txt"):
            self.assertIn(f" {path}", listed)
        self.assertNotIn("libssl", listed)
        self.assertNotIn("libllm_dist_", listed)

    def test_mpi_is_a_package_of_its_own(self):
        if not list(self.folder.glob("llm-dist-mpi_*.deb")):
            self.skipTest("built without MPI")
        fields, listed = self.control("llm-dist-mpi")
        self.assertIn("libllm_dist_mpi.so", listed)
        self.assertRegex(fields["Depends"], r"llm-dist \(= .*\)")
        self.assertRegex(fields["Depends"], r"libopenmpi3")


if __name__ == "__main__":
    harness.main()
