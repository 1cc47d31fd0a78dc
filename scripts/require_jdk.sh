#!/usr/bin/env bash
# Exits with 2 unless JAVA_HOME or PATH has a JDK of at least the given major version.
set -u
wanted=$1
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
found=$("$java" -version 2>&1) || {
  echo "error: a JDK >= $wanted is needed and '$java' does not run; install one (Debian: apt install openjdk-17-jdk-headless) or set JAVA_HOME" >&2
  exit 2
}
major=$(sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' <<<"$found" | head -1)
[ "${major:-0}" -ge "$wanted" ] || {
  echo "error: a JDK >= $wanted is needed and '$java' is version ${major:-unknown}; install a newer one or set JAVA_HOME" >&2
  exit 2
}
