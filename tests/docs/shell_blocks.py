"""What the documents tell their readers to type: the blocks of code in Markdown, their lines, the commands in those.

A block without a language, or with sh, is shell. One that has a line "$ …" (or "host$ …") is a transcript: those lines
are what is typed, the others what is seen. Everything else names its language: text, json, toml, python, cpp.
"""
import dataclasses
import re
import shlex

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^\w*\$ ")
HEREDOC = re.compile(r"<<'?(\w+)'?")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
OPTIONAL = re.compile(r"\s\[[a-z][^\]]*\]")  # "[flags of serve]"
SEPARATORS = "();|&"


@dataclasses.dataclass
class Block:
    document: str
    line: int
    language: str
    text: str

    def is_shell(self):
        return self.language in ("", "sh")

    def where(self):
        return f"{self.document}:{self.line}"


@dataclasses.dataclass
class Typed:
    """One line as a shell reads it, continued ones joined, and what the document shows behind it."""
    text: str
    shown: list


def blocks_of(document, text):
    return [Block(document, text.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in FENCE.finditer(text)]


def spans_of(text):
    """Code in prose and tables."""
    return [span.replace("\\|", "|") for span in SPAN.findall(FENCE.sub("", text))]


def typed_lines(block):
    transcript = any(PROMPT.match(line) for line in block.text.splitlines())
    typed, unfinished, here = [], False, None
    for line in block.text.splitlines():
        if here is not None:
            here = None if line == here else here
        elif unfinished:
            typed[-1].text += " " + line.strip()
        elif not transcript or PROMPT.match(line) or (not typed and line.startswith("export ")):
            typed.append(Typed(PROMPT.sub("", line), []))
        else:
            typed[-1].shown.append(line)
            continue
        unfinished = typed[-1].text.endswith("\\")
        typed[-1].text = typed[-1].text.removesuffix("\\")
        if here is None and (found := HEREDOC.search(line)):
            here = found[1]
    return [one for one in typed if one.text.strip()]


def commands_of(line):
    """The simple commands of a line, each a list of words; redirections and what may be left out are dropped."""
    lexer = shlex.shlex(OPTIONAL.sub("", line), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    commands, words, skip = [], [], False
    for token in lexer:
        if token in ("<", ">", ">>", "<<"):
            skip = True
        elif skip:
            skip = False
        elif all(character in SEPARATORS + "<" for character in token):
            commands.append(words)
            words = []
        elif token != "…":
            words.append(token)
    return [command for command in [*commands, words] if command]
