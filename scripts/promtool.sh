#!/usr/bin/env bash
# Prints the path of Prometheus' promtool: $PROMTOOL, or one on the PATH, or the one of Debian's
# package, which is downloaded once into the user's cache and is not installed.
set -euo pipefail

found=${PROMTOOL:-$(command -v promtool || true)}
if [ -n "$found" ]; then
  [ -x "$found" ] || { echo "error: PROMTOOL=$found is no program; name another one" >&2; exit 2; }
  echo "$found"
  exit
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/relay_pipelines/prometheus
promtool=$cache/usr/bin/promtool
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9  # several test processes may come here at once
if [ ! -x "$promtool" ]; then
  work=$(mktemp -d "$cache/download.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
  # with lists of its own it needs no root, and leaves those of the machine alone
  apt=(apt-get -qq -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
  if ! (cd "$work" && "${apt[@]}" update && "${apt[@]}" download prometheus && dpkg -x prometheus_*.deb unpacked) \
      >"$work/log" 2>&1; then
    echo "error: promtool cannot be downloaded as Debian's package prometheus: $(tail -n 1 "$work/log");" \
      "install Prometheus, or name its promtool: PROMTOOL=/path/to/promtool" >&2
    exit 2
  fi
  mkdir -p "$cache/usr/bin"
  mv "$work/unpacked/usr/bin/promtool" "$promtool"  # last: its presence means complete
fi
echo "$promtool"
