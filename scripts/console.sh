# Shared by the scripts here: timed phases and clear failures. Source it; needs bash 5.
# shellcheck shell=bash disable=SC2034
set -euo pipefail

repo_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
started_at=$EPOCHREALTIME
phase_name=""
phase_started_at=$EPOCHREALTIME

seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }'; }

end_phase() {
  [ -z "$phase_name" ] || printf '   %s: %s s\n' "$phase_name" "$(seconds_since "$phase_started_at")"
  phase_name=""
}

# phase "Building": ends the previous phase with its time and announces the next.
phase() {
  end_phase
  phase_name=$1
  phase_started_at=$EPOCHREALTIME
  printf '== %s\n' "$1"
}

fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# run_logged LOG COMMAND…: quiet unless it fails; then the end of its log.
run_logged() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    fail "'$*' failed; the whole log: $log"
  fi
}

jobs_that_fit() {
  # A compiler process takes up to 2 GB with sanitizers: cores, but no more than memory allows.
  local cores memory_gib
  cores=$(nproc)
  memory_gib=$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
  local by_memory=$((memory_gib / 2))
  [ "$by_memory" -ge 1 ] || by_memory=1
  [ "$cores" -le "$by_memory" ] && echo "$cores" || echo "$by_memory"
}

minimum_rust=1.85

# Puts the first Rust that is new enough into PATH: of those in PATH, rustup's, and Ubuntu's package of one version, as
# src/text/CMakeLists.txt chooses, too. False where there is none.
find_rust() {
  local folder version
  for folder in "" "$HOME/.cargo/bin/" "/usr/lib/rust-$minimum_rust/bin/"; do
    version=$("${folder}cargo" --version 2>/dev/null | awk "{ print \$2 }") || true
    [ -n "$version" ] || continue
    [ "$(printf '%s\n%s\n' "$minimum_rust" "$version" | sort -V | head -n 1)" = "$minimum_rust" ] || continue
    [ -z "$folder" ] || export PATH="${folder%/}:$PATH"
    return 0
  done
  return 1
}
# Where a prebuilt archive is used no Rust is needed.
add_rust_to_path() { find_rust || true; }
