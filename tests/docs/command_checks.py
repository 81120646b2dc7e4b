"""Whether a command of the documents can be what it says, without running it: flags by the program's own parser, files,
targets and presets by the tree, URLs by the OpenAPI files."""
import functools
import json
import os
import pathlib
import re
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/ranks"))
import harness  # noqa: E402

LAUNCHERS = ("mpirun", "srun", "torchrun", "apptainer", "nice")
# Nothing of ours to check.
HOST_TOOLS = ("apt-get", "cat", "cd", "echo", "export", "fpath", "jq", "kill", "man", "module", "openssl", "printf",
              "sh", "sha256sum", "source", "spack", "tar", "ulimit", "unshare")
KEYWORDS = ("for", "while", "do", "done", "if", "then", "fi")
ASSIGNMENT = re.compile(r"^\w+=")
OPENAPI = {8000: "docs/openapi.json", 8080: "docs/coordinator-openapi.json"}
FOLDERS = tuple(f"{folder}/" for folder in ("scripts", "launch", "tests", "docs", "examples", "packaging", "src", "cmake",
                                            "cluster", "comm", "kernels", "parallel"))
# Behind the arguments of a command: if the parser has nothing else to complain of, it took all of them.
END = "--end-of-command"
EXTRA_ARGUMENT = 109
PLACEHOLDERS = {"N": "2", "URL": "http://127.0.0.1:8000", "S": "2"}


class Mistake(Exception):
    pass


def read(name):
    return (ROOT / name).read_text()


@functools.cache
def parser_says(arguments):
    """None, or what the program's parser has against these arguments. Nothing is run."""
    with tempfile.TemporaryDirectory() as folder:
        for word in arguments:  # some must name files
            if "/" not in word and not word.startswith("-"):
                (pathlib.Path(folder) / word[:100]).touch()
        done = harness.run([*arguments, END], cwd=folder)
    first = (done.stderr.splitlines() or [""])[0]
    if done.returncode == EXTRA_ARGUMENT and first == f"llm-dist: The following argument was not expected: {END}":
        return None
    return done.stderr.replace(END, "").strip() or f"ended with {done.returncode}"


def check_arguments(arguments):
    if arguments in (["--help"], ["--version"]):
        return
    said = parser_says(tuple(PLACEHOLDERS.get(word, word) for word in arguments))
    if said:
        raise Mistake(f"llm-dist {' '.join(arguments)}: {said}")


@functools.cache
def is_command(names):
    """Whether `llm-dist NAMES` is a command, with or without others below it."""
    done = harness.run([*names, "--help"])
    return done.returncode == 0 and f"Usage: llm-dist {' '.join(names)} [" in done.stdout


def launched(words):
    """The arguments of the llm-dist that a launcher starts, None without one."""
    for at, word in enumerate(words):
        if word.rpartition("/")[2] == "llm-dist":
            return words[at + 1:]
    return None


def batch_arguments(words):
    """What a batch script makes of its own arguments."""
    at = next((at for at, word in enumerate(words) if word.endswith(".sbatch")), None)
    if at is None:
        raise Mistake("sbatch without a script of launch/slurm")
    rest = words[at + 1:]
    if words[at].endswith("generate.sbatch"):
        return ["generate", rest[0], "--input-file", rest[1], "--output-file", rest[2], *rest[3:]]
    return ["serve", *rest]


@functools.cache
def cmake_text():
    files = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake"),
             *(path for folder in FOLDERS for path in (ROOT / folder).glob("**/CMakeLists.txt"))]
    return "\n".join(path.read_text() for path in files)


def is_target(name):
    made = r"add_executable|add_custom_target|llm_dist_(?:test|library|module)"
    if re.search(rf"(?:{made})\({re.escape(name)}\s", cmake_text()):
        return True
    return name.endswith("_fuzz") and f"llm_dist_fuzz({name.removesuffix('_fuzz')} " in cmake_text()


def is_preset(name):
    return any(preset["name"] == name for preset in json.loads(read("CMakePresets.json"))["configurePresets"])


def check_cmake(words):
    for word, value in zip(words, [*words[1:], ""]):
        setting = re.match(r"(?:-D)?(LLM_DIST_\w+)=", word)
        if setting and not re.search(rf"\b{setting[1]}\b", cmake_text()):
            raise Mistake(f"no CMake file knows {setting[1]}")
        if word == "--preset" and not is_preset(value):
            raise Mistake(f"no preset {value}")
        if word in ("--build", "--install") and value and not is_preset(value.removeprefix("build/")):
            raise Mistake(f"{value} is no preset's folder")
        if word == "--target" and value != "llm-dist" and not is_target(value):
            raise Mistake(f"no target {value}")


def check_curl(words):
    url = urllib.parse.urlparse(next((word for word in words if word.startswith("http://")), ""))
    if url.port not in OPENAPI:
        raise Mistake("no URL of a port whose API is described")
    method = "get"
    for word, value in zip(words, [*words[1:], ""]):
        if word in ("-d", "--data", "-F"):
            method = "post"
        if word in ("-X", "--request"):
            method = value.lower()
            break
    for template, methods in json.loads(read(OPENAPI[url.port]))["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, url.path) and method in methods:
            return
    raise Mistake(f"{OPENAPI[url.port]} has no {method.upper()} {url.path}")


def check_script(words):
    path = ROOT / words[0]
    if not os.access(path, os.X_OK):
        raise Mistake(f"{words[0]} cannot be run")
    for word in words[1:]:
        if word.startswith("--") and word.partition("=")[0] not in path.read_text():
            raise Mistake(f"{words[0]} does not know {word}")


def check_files(words):
    for word in words:
        name = word.removeprefix("./")
        if name.startswith(FOLDERS) and not (ROOT / name).exists():
            raise Mistake(f"{name} does not exist")


def check(words):
    """True: what is ours in it is right. False: there is nothing of ours in it. Raises Mistake."""
    words = [word for word in words if word]
    while words and (ASSIGNMENT.match(words[0]) or words[0] in KEYWORDS):
        if words[0] == "for":
            return False
        words = words[1:]
    if not words:
        return False
    check_files(words)
    head = words[0].removeprefix("./")
    if head.rpartition("/")[2] == "llm-dist":
        check_arguments(words[1:])
    elif head in LAUNCHERS:
        arguments = launched(words)
        if arguments is None:
            return False
        check_arguments(arguments)
    elif head == "launch/mpirun.sh":
        check_arguments(words[2:])
    elif head == "sbatch":
        check_arguments(batch_arguments(words))
    elif head == "curl":
        check_curl(words)
    elif head == "cmake":
        check_cmake(words)
    elif head in ("python3", ".venv/bin/python"):
        return any(word.endswith(".py") for word in words)
    elif not head.startswith("build/") and (ROOT / head).is_file():
        check_script([head, *words[1:]])
    elif not is_target(head.rpartition("/")[2]) and head not in HOST_TOOLS and not head.startswith(".venv/bin/"):
        raise Mistake(f"{head} is neither here nor a tool of the host's")
    else:
        return head not in HOST_TOOLS and not head.startswith(".venv/bin/")
    return True
