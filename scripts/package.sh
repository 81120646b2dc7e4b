#!/usr/bin/env bash
# Makes the relocatable archive and the Debian packages of llm-dist, for CPUs.
# usage: scripts/package.sh [--output DIR] [--jobs N] [-- CMAKE-ARGUMENT…]
#   --output DIR  build/package unless said otherwise
#   --jobs N      compiler processes at once; as many as cores and memory allow unless said otherwise
#   -- …          to CMake, for example -- -D LLM_DIST_PACKAGE_CONTACT="Ada <ada@example.org>"
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"
cd "$repo_dir"

output=$repo_dir/build/package jobs=""
while [ $# -gt 0 ]; do
  case $1 in
    --output) output=$(realpath -m "${2:?--output needs a folder}") && shift ;;
    --jobs) jobs=${2:?--jobs needs a number} && shift ;;
    -h | --help) sed -n '2,6s/^# \?//p' "$0" && exit 0 ;;
    --) shift && break ;;
    *) fail "unknown option $1 (see --help)" ;;
  esac
  shift
done
for program in dpkg-shlibdeps:dpkg-dev file:file; do
  command -v "${program%:*}" >/dev/null || fail "${program%:*} (package ${program#*:}) is missing: it finds what the packages depend on"
done

scripts/deps.sh
add_rust_to_path
# A build of its own: the one for daily work may have the CUDA modules, which need their toolkit's libraries.
build=$repo_dir/build/release-cpu
phase "Building"
run_logged build/log/package-configure.log cmake --preset release -B "$build" -D LLM_DIST_CUDA=OFF "$@"
run_logged build/log/package-build.log cmake --build "$build" --target llm-dist -j "${jobs:-$(jobs_that_fit)}"
phase "Packing"
run_logged build/log/cpack.log cpack --config "$build/CPackConfig.cmake" -B "$output"
rm -rf "$output/_CPack_Packages"
end_phase
for file in "$output"/*.tar.gz "$output"/*.deb; do echo "   $file ($(du -h "$file" | cut -f1))"; done
