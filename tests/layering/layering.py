#!/usr/bin/env python3
"""Fails on an include that the folder table of docs/overview.md does not allow, on a vendor header outside its leaf, and
where that table and ALLOWED below differ.

usage: layering.py [--self-test]
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Folder → folders whose headers it may include (itself always). The most specific folder of a path counts.
ALLOWED = {
    "src/base": set(),
    "src/device": {"src/base"},
    "src/http": {"src/base"},
    "src/checkpoint": {"src/base"},
    "src/text": {"src/base"},
    "src/sched": {"src/base"},
    "kernels": {"src/base", "src/device"},
    "comm": {"src/base", "src/device", "kernels/cuda/device"},
    "parallel": {"src/base", "src/device", "kernels", "comm"},
    "src/model": {"src/base", "src/device", "src/checkpoint", "kernels", "parallel"},
    "src/engine": {"src/base", "src/device", "src/checkpoint", "src/sched", "src/model", "parallel", "kernels", "comm"},
    "src/server": {"src/base", "src/http", "src/text", "src/sched", "src/engine"},
    "cluster": {"src/base", "src/http", "src/text"},
    "launch": None,  # everything
    "tests": None,
    "examples": None,
}

# Vendor header → folders that may include it.
VENDOR = [
    (r"mpi\.h", ["comm/mpi", "tests/comm"]),
    (r"nccl\.h", ["comm/nccl"]),
    (r"cuda.*\.h|cublas.*\.h", ["src/device/cuda", "kernels/cuda", "comm/nccl", "comm/p2p", "tests/comm", "tests/kernels"]),
    (r"boost/beast.*", ["src/http"]),
    (r"boost/.*", ["src/http", "comm/tcp"]),
    (r"spdlog/.*", ["src/base"]),
    (r"nlohmann/.*", ["src/checkpoint", "src/http", "src/server", "cluster", "launch", "tests"]),
    (r"prometheus/.*", ["src/server"]),
    (r"oneapi/dnnl/.*|dnnl\.hpp?", ["kernels/cpu", "tests/kernels"]),
    (r"hwy/.*", ["kernels/cpu", "src/checkpoint", "tests"]),
    (r"hwloc\.h", ["launch"]),
    (r"CLI/.*", ["launch", "tests/launch"]),
    (r"toml\+\+/.*", ["launch"]),
    (r"openssl/.*", ["src/http", "comm/tcp", "tests/http"]),
    (r"sqlite3\.h", ["cluster/store", "tests/cluster"]),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


def folder_of(path):
    candidates = [f for f in ALLOWED if path == f or path.startswith(f + "/")]
    return max(candidates, key=len, default=None)


def violations(path, text):
    owner = folder_of(path)
    for kind, name in INCLUDE.findall(text):
        if kind == '"':
            target = folder_of(name)
            if target is None:
                if "/" in name and owner is not None and not owner.startswith("tests"):
                    yield f"{path}: \"{name}\" is no path from the repository's root"
                continue
            allowed = ALLOWED[owner] if owner else None
            if allowed is not None and target != owner:
                if not any(name.startswith(a + "/") for a in allowed):
                    yield f"{path}: {owner} may not include {target} ({name})"
        for pattern, homes in VENDOR:
            if re.fullmatch(pattern, name):
                if not any(path.startswith(h + "/") for h in homes):
                    yield f"{path}: {name} belongs to {' '.join(homes)}"
                break
        if name.startswith("nlohmann/") and path.endswith(".h") and not path.startswith("tests/"):
            yield f"{path}: {name} in a header"


def sources():
    for folder in ("src", "parallel", "comm", "kernels", "launch", "cluster", "tests", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def table_of(document):
    """Folder → folders it may include, from the table's first and third columns."""
    rows = re.findall(r"^\| `([^`]+)` \|[^|]*\|([^|]*)\|", document, re.MULTILINE)
    return {name: None if cell.strip() == "everything" else set(re.findall(r"`([^`]+)`", cell)) for name, cell in rows}


def table_differences(document):
    table = table_of(document)
    for folder in sorted(table.keys() | ALLOWED.keys()):
        if table.get(folder, "no row") != ALLOWED.get(folder, "no row"):
            yield f"docs/overview.md: the table's row of {folder} and ALLOWED differ"


def self_test():
    """The checker must notice what it is for."""
    bad = [
        ("src/base/x.h", '#include "src/device/stream.h"\n'),
        ("src/model/x.cpp", "#include <mpi.h>\n"),
        ("src/sched/x.cpp", '#include "src/engine/engine.h"\n'),
        ("src/server/x.h", "#include <nlohmann/json.hpp>\n"),
        ("parallel/x.cpp", "#include <cuda_runtime.h>\n"),
        ("src/engine/x.cpp", '#include "src/http/server.h"\n'),
    ]
    for path, text in bad:
        if not list(violations(path, text)):
            sys.exit(f"layering self-test: {path} with {text!r} passed")
    if list(violations("src/engine/x.cpp", '#include "src/model/model.h"\n#include <vector>\n')):
        sys.exit("layering self-test: an allowed include was refused")
    if len(list(table_differences("| `src/base` | x | `kernels` | |\n"))) != len(ALLOWED):
        sys.exit("layering self-test: a wrong table passed")


def main():
    self_test()
    found = [v for path, text in sources() for v in violations(path, text)]
    found += table_differences((ROOT / "docs/overview.md").read_text())
    print("\n".join(found) if found else "layering: every include is allowed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
