#!/usr/bin/env bash
# Unpacks a CUDA compiler, the headers and libraries that the GPU modules need, and NCCL, from pinned wheels into
# .deps/cuda: GPU code then builds on a machine that has neither a toolkit nor a GPU. No root, nothing outside the checkout
# but the cache of wheels. CMake takes a toolkit of the host first, if there is one.
# usage: scripts/cuda_wheels.sh
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"
# shellcheck source=scripts/wheels.sh
source "$(dirname "$0")/wheels.sh"

# Every piece is pinned: the parts of a compiler that differ in their minor version refuse each other's output.
toolkit_version=13.0-1
wheels=(
  nvidia-cuda-nvcc==13.0.88
  nvidia-nvvm==13.0.88
  nvidia-cuda-crt==13.0.88
  nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85
  nvidia-cublas==13.1.2.11
  nvidia-nccl-cu13==2.28.9
)
to=$repo_dir/.deps/cuda
complete=$to/.complete-$toolkit_version
[ ! -e "$complete" ] || exit 0

echo "   up to 0.7 GB to download into $wheel_cache, 1.0 GB in .deps/cuda"
scratch=$repo_dir/.deps/cuda.part
rm -rf "$scratch"
trap 'rm -rf "$scratch"' EXIT
fetch_wheels "${wheels[@]}"
for wheel in "${wheels[@]}"; do
  # Not linked by anything here: a library of the compiler's back end, and BLAS under the names of the CPU's.
  unpack_wheel "$scratch" "$wheel" '*/lib/libnvvm.so*' '*/lib/libnvblas.so*' '*/.metadata/*'
done

root=$scratch/nvidia/cu13
cp -al "$scratch/nvidia/nccl/." "$root/"
chmod -R u+x "$root/bin" "$root/nvvm/bin"
ln -s lib "$root/lib64"
for library in "$root"/lib/lib*.so.*; do
  ln -sf "$(basename "$library")" "${library%.so.*}.so"
done
rm -rf "$to"
mv "$root" "$to"
touch "$complete"
