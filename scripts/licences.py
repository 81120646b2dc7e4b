#!/usr/bin/env python3
"""Collects the licence texts of everything that a package of llm-dist holds or was compiled from.

usage: licences.py [--onednn DIR] OUTPUT_DIR
OUTPUT_DIR/README names each part, its version and its licence file: oneDNN's own, the Debian packages of
scripts/offline-libraries.txt by what the distribution says of them, and the Rust crates of src/text/ffi. Fails, naming
the part, when a text is missing: a package without it may not be handed on.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEXTS = ("LICENSE*", "LICENCE*", "COPYING*", "UNLICENSE*", "NOTICE*", "license*")
# Beside the list of libraries, the compiler's own. Boost is used as headers alone, and its licence asks for nothing in
# programs made from them.
ALSO = {"gomp": "libgomp1"}
NOT_NEEDED = {"boost"}
COMMON = pathlib.Path("/usr/share/common-licenses")


def fail(message):
    sys.exit(f"licences.py: {message}")


def output_of(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def installed_packages():
    """Name → Debian package that has the library's header here."""
    packages = dict(ALSO)
    for line in (ROOT / "scripts/offline-libraries.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, header = line.split()[:2]
            if name in NOT_NEEDED:
                continue
            owner = output_of("dpkg-query", "-S", f"/usr/include/{header}")
            if not owner:  # some headers are in a folder of the machine's kind
                owner = output_of("dpkg-query", "-S", f"*/{header}")
            packages[name] = owner.split(":")[0]
    return packages


def add_libraries(output):
    if shutil.which("dpkg-query") is None:
        fail("no dpkg-query: the licences of the distribution's libraries are found by it")
    for name, package in sorted(installed_packages().items()):
        text = pathlib.Path(f"/usr/share/doc/{package}/copyright")
        if not package or not text.exists():
            fail(f"no licence of {name} here")
        shutil.copyfile(text, output / f"{name}.txt")
        # Debian's texts refer to long licences by where they lie on its machines.
        for common in set(re.findall(rf"{COMMON}/([A-Za-z0-9.-]*[A-Za-z0-9])", text.read_text(errors="replace"))):
            shutil.copyfile(COMMON / common, output / f"{common}.txt")
        yield name, output_of("dpkg-query", "-W", "-f", "${source:Upstream-Version}", package), f"{name}.txt"


def add_onednn(folder, output):
    texts = [path for path in sorted(pathlib.Path(folder).glob("share/doc/**/*")) if path.is_file()]
    found = [path for path in texts if path.name in ("LICENSE", "THIRD-PARTY-PROGRAMS")]
    if not found:
        fail(f"no licence of oneDNN in {folder}")
    for path in found:
        shutil.copyfile(path, output / f"oneDNN-{path.name}.txt")
        yield "oneDNN", "3.2", f"oneDNN-{path.name}.txt"


def crates():
    """(name, version, licence, folder) of every crate that is compiled in; no network is used."""
    path = os.environ.get("PATH", "") + os.pathsep + os.path.expanduser("~/.cargo/bin")
    done = subprocess.run(
        ["cargo", "metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform",
         "x86_64-unknown-linux-gnu", "--manifest-path", ROOT / "src/text/ffi/Cargo.toml"],
        capture_output=True, text=True, env={**os.environ, "PATH": path})
    if done.returncode != 0:
        fail(f"cargo does not know the crates: {done.stderr.strip().splitlines()[-1]}")
    for crate in json.loads(done.stdout)["packages"]:
        if crate["source"] is not None:  # not our own
            yield crate["name"], crate["version"], crate["license"], pathlib.Path(crate["manifest_path"]).parent


def add_crates(output):
    """Many crates carry the same text: each text once, with the names of those that carry it."""
    carriers, texts = {}, {}
    for name, version, licence, folder in crates():
        found = sorted({path for pattern in TEXTS for path in folder.glob(pattern) if path.is_file()})
        if not found:
            fail(f"no licence of the crate {name} in {folder}")
        for path in found:
            text = path.read_text(errors="replace").strip()
            key = hashlib.sha256(text.encode()).hexdigest()
            texts[key] = text
            carriers.setdefault(key, []).append(f"{name} {version}")
        yield f"crate {name}", version, f"rust-crates.txt ({licence})"
    with open(output / "rust-crates.txt", "w", encoding="utf-8") as file:
        for key, names in sorted(carriers.items(), key=lambda item: item[1]):
            file.write(f"{'=' * 100}\n{', '.join(names)}\n{'=' * 100}\n{texts[key]}\n\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--onednn", default=ROOT / ".deps/onednn")
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.output, ignore_errors=True)
    arguments.output.mkdir(parents=True)
    parts = [*add_onednn(arguments.onednn, arguments.output), *add_libraries(arguments.output),
             *add_crates(arguments.output)]
    with open(arguments.output / "README", "w", encoding="utf-8") as file:
        file.write("What llm-dist is built from, and the file here that holds its licence.\n\n")
        file.writelines(f"{name} {version}: {text}\n" for name, version, text in parts)


if __name__ == "__main__":
    main()
