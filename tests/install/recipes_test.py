"""What packaging/ holds, as far as it can be checked without the tools that it is for, and what scripts/deps.sh installs."""
import ast
import hashlib
import os
import pathlib
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ranks"))
import harness  # noqa: E402

PACKAGING = harness.ROOT / "packaging"
VERSION = re.search(r"project\(llm-dist VERSION (\S+)", (harness.ROOT / "CMakeLists.txt").read_text()).group(1)


class ModuleFile(unittest.TestCase):
    """In Lmod or Environment Modules: a machine can have one of the two."""
    systems = ("/usr/share/lmod/lmod/init/bash", "/usr/share/modules/init/bash")

    def setUp(self):
        self.init = next(filter(os.path.exists, self.systems), None)
        if self.init is None:
            self.skipTest("neither Lmod nor Environment Modules is installed")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name).resolve() / "tree"
        path = self.tree / "share/modulefiles/llm-dist" / VERSION
        path.parent.mkdir(parents=True)
        path.write_text((PACKAGING / "modulefile.in").read_text().replace("@PROJECT_VERSION@", VERSION))
        (self.tree / "bin").mkdir()
        (self.tree / "bin/llm-dist").write_text("#!/bin/sh\n")
        (self.tree / "bin/llm-dist").chmod(0o755)

    def type(self, lines, **environment):
        """What a shell of a user prints who types these lines."""
        typed = f'source {self.init}\nmodule use "{self.tree}/share/modulefiles"\n{lines}'
        done = subprocess.run(["bash", "--norc", "-c", typed], capture_output=True, text=True, timeout=60,
                              env={"PATH": "/usr/bin:/bin", "HOME": str(self.tree), **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout + done.stderr

    def variable(self, name, lines="module load llm-dist", **environment):
        return self.type(f'{lines}\nprintf "[%s]" "${{{name}-unset}}"', **environment).rpartition("[")[2].rstrip("]")

    def test_it_finds_the_tree_by_its_own_place(self):
        self.assertIn(f"{self.tree}/bin/llm-dist", self.type("module load llm-dist\ncommand -v llm-dist"))
        self.assertEqual(self.variable("PATH").split(":")[0], f"{self.tree}/bin")
        manuals = self.variable("MANPATH").split(":")
        self.assertEqual(manuals[0], f"{self.tree}/share/man")
        self.assertIn("", manuals, "man's own folders stay")

    def test_the_systems_completions_stay(self):
        self.assertEqual(self.variable("XDG_DATA_DIRS"), f"{self.tree}/share:/usr/local/share:/usr/share")
        self.assertEqual(self.variable("XDG_DATA_DIRS", XDG_DATA_DIRS="/opt/share"), f"{self.tree}/share:/opt/share")

    def test_unloaded_it_leaves_nothing(self):
        before, after = "", "module load llm-dist\nmodule unload llm-dist"
        for name in ("PATH", "XDG_DATA_DIRS"):
            with self.subTest(variable=name):
                self.assertEqual(self.variable(name, after, XDG_DATA_DIRS="/opt/share"),
                                 self.variable(name, before, XDG_DATA_DIRS="/opt/share"))
        self.assertNotIn(str(self.tree), self.variable("MANPATH", after))
        self.assertNotIn(str(self.tree), self.variable("XDG_DATA_DIRS", after))

    def test_help(self):
        self.assertIn("serves a large language model", self.type("module help llm-dist"))
        self.assertIn(f"llm-dist {VERSION}: ", self.type("module whatis llm-dist"))


class Spack(unittest.TestCase):
    recipe = PACKAGING / "spack/packages/llm_dist/package.py"

    def test_it_compiles(self):
        with tempfile.TemporaryDirectory() as folder:
            py_compile.compile(str(self.recipe), cfile=f"{folder}/package.pyc", doraise=True)

    def test_each_setting_is_one_of_cmakes(self):
        cmake = "".join(path.read_text() for path in [harness.ROOT / "CMakeLists.txt",
                                                      *(harness.ROOT / "cmake").glob("*.cmake")])
        names = [node.args[0].value for node in ast.walk(ast.parse(self.recipe.read_text()))
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "define"]
        self.assertTrue(names)
        for name in names:
            if not name.startswith("CMAKE_"):
                self.assertIn(name, cmake)


class Apptainer(unittest.TestCase):
    def sections(self):
        text = (PACKAGING / "apptainer/llm-dist.def").read_text()
        return dict(re.findall(r"(?ms)^%(\w+)$\n(.*?)(?=^%|\Z)", text))

    def test_it_takes_the_packages_of_this_version(self):
        names = [line.split()[0] for line in self.sections()["files"].splitlines() if line.strip()]
        self.assertEqual(names, [f"build/package/{name}_{VERSION}_amd64.deb" for name in ("llm-dist", "llm-dist-mpi")])

    def test_its_files_lie_where_the_host_mounts_nothing_over_them(self):
        """While %post runs, the host's /tmp, /var/tmp, home and kernel folders cover the container's own."""
        mounted = ("/tmp", "/var/tmp", "/root", "/home", "/proc", "/sys", "/dev", "/run")
        for line in filter(str.strip, self.sections()["files"].splitlines()):
            _, place = line.split()
            self.assertFalse(place.startswith(mounted), place)
            self.assertIn(place, self.sections()["post"])

    def test_its_scripts_are_scripts(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("shellcheck is not installed")
        for name in ("post", "environment", "runscript", "test"):
            with self.subTest(section=name):
                done = subprocess.run(["shellcheck", "-s", "sh", "-"], input=self.sections()[name], capture_output=True,
                                      text=True, timeout=60)
                self.assertEqual(done.stdout, "")


class Distributions(unittest.TestCase):
    def packages(self, *lines):
        with tempfile.NamedTemporaryFile("w", suffix="os-release") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            done = subprocess.run([harness.ROOT / "scripts/deps.sh", "--test", "--list"], capture_output=True, text=True,
                                  timeout=60, env={**os.environ, "LLM_DIST_OS_RELEASE": file.name})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            return set(done.stdout.split())

    def test_debian_12_and_ubuntu_24_04(self):
        debian = self.packages("ID=debian", 'VERSION_ID="12"')
        ubuntu = self.packages("ID=ubuntu", 'VERSION_ID="24.04"')
        self.assertEqual(debian - ubuntu, {"libboost1.81-dev", "cargo-web", "rustc-web"})
        self.assertEqual(ubuntu - debian, {"libboost1.83-dev", "cargo-1.85", "rustc-1.85"})


class Wheels(unittest.TestCase):
    """A wheel from anywhere is unpacked only if its bytes are those that were pinned."""
    SCRIPTS = harness.ROOT / "scripts"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        self.scripts, self.into = root / "scripts", root / "into"
        self.scripts.mkdir()
        for script in ("console.sh", "wheels.sh"):
            shutil.copy(self.SCRIPTS / script, self.scripts)
        self.wheel = root / "cache/llm-dist/wheels/a_wheel-1.0-py3-none-any.whl"
        self.wheel.parent.mkdir(parents=True)
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("inside", "it")
        self.pinned = hashlib.sha256(self.wheel.read_bytes()).hexdigest()

    def unpack(self, sums):
        """What the script says, and the files that it unpacked."""
        (self.scripts / "wheels.sha256").write_text(sums)
        done = subprocess.run(
            ["bash", "-c", f"source {self.scripts}/console.sh; source {self.scripts}/wheels.sh; "
                           f"unpack_wheel {self.into} a-wheel==1.0; echo done"],
            env={**os.environ, "XDG_CACHE_HOME": str(self.wheel.parents[2])}, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode == 0, done.stdout == "done\n", done)
        return done.stderr, [path.name for path in self.into.glob("*")]

    def test_the_pinned_file(self):
        self.assertEqual(self.unpack(f"{self.pinned}  {self.wheel.name}\n"), ("", ["inside"]))

    def test_another_file_of_its_name(self):
        with zipfile.ZipFile(self.wheel, "a") as archive:
            archive.writestr("more", "")
        said, unpacked = self.unpack(f"{self.pinned}  {self.wheel.name}\n")
        self.assertIn(f"{self.wheel} is not the file that {self.scripts}/wheels.sha256 names", said)
        self.assertIn("Delete it and try again", said)
        self.assertEqual(unpacked, [])

    def test_no_file(self):
        self.wheel.unlink()
        said, unpacked = self.unpack("")
        self.assertIn("there is no a_wheel-1.0-*.whl in", said)
        self.assertEqual(unpacked, [])

    def test_a_file_of_no_known_name(self):
        said, unpacked = self.unpack(f"{self.pinned}  a_wheel-1.0-py3-none-manylinux1_x86_64.whl\n")
        self.assertIn(f"{self.wheel} is none of the wheels in {self.scripts}/wheels.sha256", said)
        self.assertEqual(unpacked, [])

    def test_every_wheel_that_a_script_names_is_pinned(self):
        text = "".join((self.SCRIPTS / script).read_text() for script in ("deps.sh", "cuda_wheels.sh"))
        text = text.replace("$onednn_version", re.search(r"onednn_version=(\S+)", text).group(1))
        wanted = {f"{name.replace('-', '_')}-{version}" for name, version in re.findall(r"([a-z][\w-]+)==([\d.]+)", text)}
        pinned = {"-".join(line.split()[1].split("-")[:2])
                  for line in (self.SCRIPTS / "wheels.sha256").read_text().splitlines()}
        self.assertEqual(wanted, pinned)
        self.assertGreaterEqual(len(wanted), 10)


if __name__ == "__main__":
    harness.main()
