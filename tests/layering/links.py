#!/usr/bin/env python3
"""Fails on a relative link or image of a Markdown file whose target, or whose #heading, does not exist.

usage: links.py
"""
import pathlib
import posixpath
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)


def anchors_of(text):
    """Of every heading, as GitHub makes it: lower case, punctuation dropped, blanks to hyphens."""
    seen = {}
    for heading in HEADING.findall(FENCE.sub("", text)):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = seen.get(anchor, 0)
        seen[anchor] = count + 1
        yield anchor if count == 0 else f"{anchor}-{count}"


def broken_links(path, text, read):
    """read(path from the root): the text of a Markdown file, "" of another, None where nothing stands."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))  # in code, brackets mean something else
    for target in LINK.findall(prose):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        found = read(posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path)
        if found is None:
            yield f"{path}: {target} does not exist"
        elif anchor and anchor not in anchors_of(found):
            yield f"{path}: {target} names no heading"


def read_from_tree(name):
    path = ROOT / name
    if not path.exists():
        return None
    return path.read_text() if path.suffix == ".md" else ""


def documents():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", "*.md"],
                            cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def self_test():
    """The checker must notice what it is for."""
    tree = {"README.md": "# Top\n## Two words\n## Two words", "docs/a.md": "", "x.svg": ""}
    bad = ["[a](docs/b.md)", "![p](y.svg)", "[a](#nothing)", "[a](docs/a.md#top)", "[a](../README.md)"]
    for text in bad:
        if not list(broken_links("README.md", text, tree.get)):
            sys.exit(f"links self-test: {text} passed")
    good = "[a](README.md#two-words-1) ![p](x.svg) [w](https://a.b/c) `[0](no)`\n```\n[a](no.md)\n```\n"
    if found := list(broken_links("README.md", good, tree.get)) + list(
            broken_links("docs/a.md", "[up](../README.md#top)", tree.get)):
        sys.exit(f"links self-test: refused {found}")


def main():
    self_test()
    names = documents()
    found = [b for name in names for b in broken_links(name, (ROOT / name).read_text(), read_from_tree)]
    print("\n".join(found) if found else f"links: every link of {len(names)} documents leads somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
