"""What packaging/ holds, as far as it can be checked without the tools that it is for, and scripts/deps.sh's lists."""
import ast
import os
import pathlib
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ranks"))
import harness  # noqa: E402

PACKAGING = harness.ROOT / "packaging"
VERSION = re.search(r"project\(llm-dist VERSION (\S+)", (harness.ROOT / "CMakeLists.txt").read_text()).group(1)


class ModuleFile(unittest.TestCase):
    def load(self, **environment):
        """What a module command would be told: lines of words."""
        if shutil.which("tclsh") is None:
            self.skipTest("tclsh is not installed")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tree/share/modulefiles/llm-dist" / VERSION
            path.parent.mkdir(parents=True)
            path.write_text((PACKAGING / "modulefile.in").read_text().replace("@PROJECT_VERSION@", VERSION))
            commands = "".join(f"proc {name} args {{ puts [list {name} {{*}}$args] }}\n"
                               for name in ("prepend-path", "append-path", "module-whatis", "conflict"))
            script = f"{commands}set ModulesCurrentModulefile {path}\nsource {path}\nModulesHelp\n"
            env = {name: value for name, value in os.environ.items() if name != "XDG_DATA_DIRS"}
            done = subprocess.run(["tclsh"], input=script, capture_output=True, text=True, timeout=60,
                                  env={**env, **environment})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("llm-dist", done.stderr)  # the help
            return done.stdout.replace(f"{folder}/tree", "PREFIX").splitlines()

    def test_it_finds_the_tree_by_its_own_place(self):
        lines = self.load(XDG_DATA_DIRS="/opt/share")
        self.assertIn("prepend-path PATH PREFIX/bin", lines)
        self.assertIn("prepend-path MANPATH PREFIX/share/man:", lines)
        self.assertIn("prepend-path XDG_DATA_DIRS PREFIX/share", lines)
        self.assertNotIn("append-path XDG_DATA_DIRS /usr/share", lines)

    def test_the_systems_completions_stay(self):
        self.assertIn("append-path XDG_DATA_DIRS /usr/share", self.load())


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


if __name__ == "__main__":
    harness.main()
