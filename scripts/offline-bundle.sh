#!/usr/bin/env bash
# On a machine with a network and Rust: one archive that builds llm-dist on a host with neither. It holds the source of HEAD,
# the Rust part compiled, oneDNN and the small model; unpack it there and run ./install.sh.
# usage: scripts/offline-bundle.sh [--libraries] [--cuda] [--no-model] [--output FILE]
#   --libraries  also the C++ libraries of this machine, for a host that lacks some of their -dev packages and has a C library
#                no older than here
#   --cuda       also the CUDA toolkit and NCCL of scripts/cuda_wheels.sh, for a host without them (0.7 GB)
#   --no-model   without SmolLM2-135M (93 MB)
#   --output     build/llm-dist-offline.tar.gz unless said otherwise
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"
cd "$repo_dir"

with_libraries=false with_cuda=false with_model=true
output=$repo_dir/build/llm-dist-offline.tar.gz
while [ $# -gt 0 ]; do
  case $1 in
    --libraries) with_libraries=true ;;
    --cuda) with_cuda=true ;;
    --no-model) with_model=false ;;
    --output) output=$(realpath -m "${2:?--output needs a file}") && shift ;;
    -h | --help) sed -n '2,9s/^# \?//p' "$0" && exit 0 ;;
    *) fail "unknown option $1 (see --help)" ;;
  esac
  shift
done
[ -z "$(git status --porcelain --untracked-files=no)" ] || fail "the bundle holds HEAD: commit or stash your changes first"

scripts/deps.sh
add_rust_to_path
bundle=$repo_dir/build/offline/llm-dist-offline
rm -rf "$repo_dir/build/offline"
mkdir -p "$bundle/source/.deps" "$bundle/text"
trap 'rm -rf "$repo_dir/build/offline"' EXIT

phase "Compiling the Rust part"
CARGO_TARGET_DIR=$repo_dir/build/cargo run_logged build/log/cargo.log \
  cargo build --locked --release --quiet --manifest-path src/text/ffi/Cargo.toml
cp build/cargo/release/libllm_dist_text_ffi.a "$bundle/text/"

phase "Source, oneDNN, model"
git archive HEAD | tar -x -C "$bundle/source"
cp -al .deps/onednn "$bundle/source/.deps/"
cp scripts/offline-install.sh "$bundle/install.sh"
if $with_model; then
  mkdir "$bundle/source/.models"
  cp -l .models/SmolLM2-135M-Instruct.Q4_1.gguf "$bundle/source/.models/"
fi
if $with_cuda; then
  phase "CUDA"
  scripts/cuda_wheels.sh
  cp -al .deps/cuda "$bundle/source/.deps/"
fi

# copy_library NAME HEADER: what the packages of HEADER and of its shared library installed here, under libraries/NAME.
copy_library() {
  local package to=$bundle/libraries/$1 triplet
  package=$(dpkg-query -S "/usr/include/$2" 2>/dev/null | cut -d: -f1) || true
  [ -n "$package" ] || fail "no package here has /usr/include/$2"
  mkdir -p "$to"
  # Its shared library's package is among what it depends on: not other -dev packages, not the compiler's own.
  {
    echo "$package"
    dpkg-query -W -f '${Depends}' "$package" | tr ',' '\n' | awk '{ print $1 }' |
      grep -E '^lib' | grep -vE '^(libc6|libstdc|libgcc)|-dev$' || true
  } | xargs dpkg-query -L | sed -n -E 's,^/(usr/(include|lib|share/cmake)/),\1,p' |
    tar -C / -c --no-recursion -T - | tar -x -C "$to"
  # Debian keeps some headers in a folder that only its own compiler knows.
  triplet=$(gcc -dumpmachine)
  [ ! -d "$to/usr/include/$triplet" ] || cp -al "$to/usr/include/$triplet/." "$to/usr/include/"
}
if $with_libraries; then
  phase "Libraries of this machine"
  while read -r name header _; do copy_library "$name" "$header"; done < <(grep -v '^#' scripts/offline-libraries.txt)
fi

phase "Packing"
mkdir -p "$(dirname "$output")"
tar -C "$repo_dir/build/offline" -czf "$output.part" llm-dist-offline
mv "$output.part" "$output"
end_phase
echo "   $output ($(du -h "$output" | cut -f1))
On the host: tar xzf $(basename "$output") && llm-dist-offline/install.sh"
