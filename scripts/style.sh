#!/usr/bin/env bash
# Formatting of every source file, the shell scripts, what each folder may include, and the documents' links. Fails on a
# violation.
# usage: scripts/style.sh [--fix]
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"
cd "$repo_dir"

mapfile -t sources < <(git ls-files -co --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
if [ "${1:-}" = --fix ]; then
  clang-format-19 -i "${sources[@]}"
else
  clang-format-19 --dry-run --Werror "${sources[@]}" || fail "formatting: run scripts/style.sh --fix"
fi
mapfile -t scripts < <(git ls-files -co --exclude-standard -- '*.sh' .ci/run)
shellcheck -x "${scripts[@]}"
python3 tests/layering/layering.py
python3 tests/layering/links.py
scripts/results_tables.py --check
