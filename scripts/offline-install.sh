#!/usr/bin/env bash
# Builds llm-dist from this folder, without a network and without Rust, and says first what this host lacks.
# usage: ./install.sh [--prefix DIR] [--jobs N] [-- CMAKE-ARGUMENT…]
#   --prefix DIR  also install there, with the libraries that the bundle brought along. Its CUDA stays in use where it was
#                 unpacked: with --cuda, keep the folder
#   --jobs N      compiler processes at once; as many as cores and memory allow unless said otherwise
#   -- …          to CMake, for example -- -D LLM_DIST_CUDA_ARCHITECTURES=100a
bundle=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/console.sh
source "$bundle/source/scripts/console.sh"

prefix="" jobs=""
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=$(realpath -m "${2:?--prefix needs a folder}") && shift ;;
    --jobs) jobs=${2:?--jobs needs a number} && shift ;;
    -h | --help) sed -n '2,7s/^# \?//p' "$0" && exit 0 ;;
    --) shift && break ;;
    *) fail "unknown option $1 (see --help)" ;;
  esac
  shift
done
cmake_arguments=("$@")
cd "$repo_dir"
missing=() libraries=()

# newer_than WANTED HAVE
newer_than() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

check_tools() {
  local version
  version=$(g++ -dumpfullversion 2>/dev/null || echo 0)
  newer_than 12 "$version" || missing+=("g++ 12 or newer (g++)")
  version=$(cmake --version 2>/dev/null | awk 'NR == 1 { print $3 }')
  newer_than 3.25 "${version:-0}" || missing+=("CMake 3.25 or newer (cmake)")
  command -v ninja >/dev/null || command -v make >/dev/null || missing+=("Ninja or make (ninja-build)")
}

# has_header HEADER CONDITION: what the host's compiler finds by itself.
has_header() {
  local include=""
  [ "$2" = 1 ] || include="#include <$1>"
  printf '#if __has_include(<%s>)\n%s\n#if %s\nfound\n#endif\n#endif\n' "$1" "$include" "$2" |
    g++ -E -P -x c++ - 2>/dev/null | grep -qx found
}

check_libraries() {
  local name header condition package
  while read -r name header condition package; do
    if has_header "$header" "$condition"; then
      continue
    elif [ -d "$bundle/libraries/$name" ]; then
      libraries+=("$bundle/libraries/$name/usr")
      echo "   $name: the bundle's"
    else
      missing+=("$name ($package)")
    fi
  done < <(grep -v '^#' scripts/offline-libraries.txt)
}

# NCCL where PyTorch brought it along: CMake looks in the usual places itself.
find_nccl() {
  [ -z "${LLM_DIST_NCCL_ROOT:-}" ] || { echo "$LLM_DIST_NCCL_ROOT" && return; }
  python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null || true
}

phase "What this host has"
check_tools
check_libraries
if [ ${#missing[@]} -gt 0 ]; then
  fail "missing, with the Debian package in brackets: $(printf '\n   %s' "${missing[@]}")
Install them, or make the bundle with --libraries."
fi
command -v mpirun >/dev/null || echo "   Open MPI (libopenmpi-dev openmpi-bin) is missing: start ranks with --nproc-per-node instead of mpirun"
nvcc=$(PATH=$PATH:/usr/local/cuda/bin:$repo_dir/.deps/cuda/bin command -v nvcc || true)
echo "   CUDA: ${nvcc:-no toolkit (or make the bundle with --cuda): CPU only}"

phase "Building"
generator=Ninja
command -v ninja >/dev/null || generator="Unix Makefiles"
nccl_root=$(find_nccl)
run_logged build/log/configure.log cmake -S . -B build/release -G "$generator" -D LLM_DIST_WERROR=OFF \
  -D CMAKE_BUILD_TYPE=Release -D LLM_DIST_TESTS=OFF -D LLM_DIST_TEXT_ARCHIVE="$bundle/text/libllm_dist_text_ffi.a" \
  -D CMAKE_PREFIX_PATH="$(IFS=';' && echo "${libraries[*]}")" ${nccl_root:+-D LLM_DIST_NCCL_ROOT="$nccl_root"} \
  "${cmake_arguments[@]}"
grep -F 'NCCL not found' build/log/configure.log || true
run_logged build/log/build.log cmake --build build/release --target llm-dist -j "${jobs:-$(jobs_that_fit)}"
binary=$repo_dir/build/release/launch/llm-dist
if [ -n "$prefix" ]; then
  run_logged build/log/install.log cmake --install build/release --prefix "$prefix"
  binary=$prefix/bin/llm-dist
fi

model=$repo_dir/.models/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -e "$model" ]; then
  phase "Asking SmolLM2 for the capital of France"
  "$binary" generate "$model" --chat --prompt "What is the capital of France?" --max-tokens 32 --log-level warning
fi
end_phase
echo "   $("$binary" --version): $binary"
ls "$(dirname "$binary")"/../lib/llm-dist
