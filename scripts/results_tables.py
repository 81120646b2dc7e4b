#!/usr/bin/env python3
"""The tables of results in the documents, made from the JSON files that the benchmarks wrote.

A table stands between `<!-- KIND FILE… -->` and `<!-- end -->`; KIND is `latency` (files of `bench latency`), `prompts`
(such files with outputs of one token), `profile` (one file of --profile, then the labels of the steps to show, each
between quotes) or `effects` (pairs WITHOUT:WITH of an optimisation, of each of which results/effects has one to three
files: NAME-latency, NAME-prompts and NAME-throughput).
Writes the tables, or fails where one differs. Fails where a file of results is named by no document.
"""
import argparse
import json
import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"
BLOCK = re.compile(r"(<!-- (latency|prompts|profile|effects) ([^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
BUDGET = re.compile(r"--max-num-batched-tokens \d+")
SMALL_SHARE = 0.005  # of a step: what is below stands in one line


def switches_of(result):
    """Flags that turn something off or on which a row is to name."""
    return re.findall(r"--(?:enforce-eager|disable-\S+|quantization \S+|kv-cache-dtype fp8|temperature \S+|top-p \S+|"
                      r"sequence-parallel off)", result["command"])


def layout_of(result):
    parts = [f"TP {result['tp']}"] if result["tp"] > 1 or result["pp"] == 1 else []
    parts += [f"PP {result['pp']}"] if result["pp"] > 1 else []
    text = " × ".join(parts)
    if "NVIDIA" not in result["device"]:
        threads = result["threads_per_rank"]
        return f"{text}, {threads} thread{'s' if threads > 1 else ''}{' each' if result['world_size'] > 1 else ''}"
    return ", ".join([text, *(f"`{switch}`" for switch in switches_of(result))])


def tokens_a_step(result):
    """Older files have no such entry: the default was 2048 in every layout."""
    flag = re.search(r"--max-num-batched-tokens[ =](\d+)", result["command"])
    return result.get("max_num_batched_tokens", int(flag[1]) if flag else 2048)


def latency(document, names):
    lines = ["| layout | batch | decode tokens/s | ms a token | floor | of floor | prompt tokens/s | source |",
             "|---|---|---|---|---|---|---|---|"]
    for name in names:
        path = RESULTS / f"{name}.json"
        result = json.loads(path.read_text())
        link = f"[results]({path.relative_to(document.parent)})"
        for row in result["rows"]:
            lines.append(f"| {layout_of(result)} | {row['batch']} | {row['output_throughput']:,.0f} | "
                         f"{row['median_tpot_ms']:.2f} | {row['floor_ms']:.2f} | {100 * row['floor_fraction']:.0f} % | "
                         f"{row['prefill_tokens_per_second']:,.0f} | {link} |")
            link = ""
    return lines


def prompts(document, names):
    lines = ["| layout | tokens a step | prompts | ms | floor | of floor | tokens/s | source |",
             "|---|---|---|---|---|---|---|---|"]
    for name in names:
        path = RESULTS / f"{name}.json"
        result = json.loads(path.read_text())
        for row in result["rows"]:
            lines.append(f"| {layout_of(result)} | {tokens_a_step(result)} | "
                         f"{row['batch']} × {row['input_len']} | {row['median_ttft_ms']:.0f} | "
                         f"{row['prefill_floor_ms']:.0f} | {100 * row['prefill_floor_fraction']:.0f} % | "
                         f"{row['prefill_tokens_per_second']:,.0f} | [results]({path.relative_to(document.parent)}) |")
    return lines


def profile(_, words):
    name, *labels = words
    tables = json.loads((RESULTS / f"{name}.json").read_text())["rank_profiles"][0]["tables"]
    lines = []
    for label in labels:
        table = next(table for table in tables if table["label"] == label)
        step = table["step_us"]
        lines += [f"| {label} | calls | µs a step | share |", "|---|---|---|---|"]
        rest = 0.0
        for row in table["rows"]:
            if row["us"] < SMALL_SHARE * step:
                rest += row["us"]
                continue
            lines.append(f"| {row['name']} | {row['calls']:.4g} | {row['us']:,.0f} | {100 * row['us'] / step:.1f} % |")
        for what, us in (("the rest", rest), ("gaps", table["gaps_us"]), ("step", step)):
            lines.append(f"| {what} | | {us:,.0f} | {100 * us / step:.1f} % |")
        lines.append("")
    return lines[:-1]


def measured(document, name):
    """Of the files results/effects/NAME-…: figures by batch, `prompts` and `throughput`; links; layout and flags."""
    figures, links, label = {}, [], ""
    for kind in ("latency", "prompts", "throughput"):
        path = RESULTS / "effects" / f"{name}-{kind}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text())
        links.append(f"[{kind}]({path.relative_to(document.parent)})")
        label = ", ".join([layout_of(result), *(f"`{flag}`" for flag in BUDGET.findall(result["command"]))])
        if kind == "throughput":
            figures[kind] = f"{round(result['total_token_throughput'], -2):,.0f}"
        for row in result.get("rows", ()):
            if kind == "latency":
                figures[row["batch"]] = f"{row['median_tpot_ms']:.2f}"
            else:
                figures[kind] = f"{row['median_ttft_ms']:.0f}"
    if not links:
        sys.exit(f"{document.name}: docs/results/effects has no file of {name}")
    return figures, ", ".join(links), label


def effects(document, pairs):
    """What flags take away: figures with the flag and without it."""
    columns = (1, 8, 32, 128, "prompts", "throughput")
    lines = ["| with the flag → without | 1 | 8 | 32 | 128 | 32 prompts | all at once | results |",
             "|---|---|---|---|---|---|---|---|"]
    for pair in pairs:
        (off, links, label), (on, _, _) = (measured(document, name) for name in pair.split(":"))
        cells = [f"{off[key]} → {on[key]}" if key in off and key in on else "" for key in columns]
        lines.append(f"| {label} | {' | '.join(cells)} | {links} |")
    return lines


def written(document):
    def table(block):
        make = {"latency": latency, "prompts": prompts, "profile": profile, "effects": effects}[block[2]]
        return block[1] + "\n".join(make(document, shlex.split(block[3]))) + "\n" + block[5]
    return BLOCK.sub(table, document.read_text())


def unnamed(documents):
    """Files of results that no document names, by a link or in a table's first line."""
    text = "".join(document.read_text() for document in documents)
    named = {name.removesuffix(".json") for name in re.findall(r"results/([\w./-]+)", text)}
    named |= {name for block in BLOCK.findall(text) for name in re.split(r"[ :]", block[2])}

    def is_named(file):
        name = str(file.with_suffix("")) if file.suffix == ".json" else str(file)
        return name in named or re.sub("^effects/(.*)-(latency|prompts|throughput)$", r"\1", name) in named
    files = sorted(path.relative_to(RESULTS) for path in RESULTS.rglob("*") if path.is_file())
    return [str(file) for file in files if not is_named(file)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a table differs")
    check = parser.parse_args().check
    stale = []
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for document in documents:
        text = written(document)
        if text == document.read_text():
            continue
        stale.append(str(document.relative_to(ROOT)))
        if not check:
            document.write_text(text)
    if lost := unnamed(documents):
        sys.exit(f"no document names these files of docs/results: {', '.join(lost)}")
    if check and stale:
        sys.exit(f"tables of results differ from docs/results: run scripts/results_tables.py ({', '.join(stale)})")
    print(f"tables of results: {', '.join(stale) + ' written' if stale else 'as the files say'}")


if __name__ == "__main__":
    main()
