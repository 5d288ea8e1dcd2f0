#!/usr/bin/env bash
# Print the URL of a throw-away PostgreSQL server on loopback; start it, and install it, where that is needed.
#
#   RUBIN_TUNE_TEST_POSTGRES=$(bash .ci/postgres.sh) pytest tests/db
#   bash .ci/postgres.sh stop
#
# Run again, it prints the URL of the server that runs already. Its data are worth nothing: fsync is off.
# `halt` stops the server at once and keeps its data, `resume` starts it again at the same address.
# RUBIN_TUNE_POSTGRES_HOME: another folder, another server.
set -euo pipefail

home="${RUBIN_TUNE_POSTGRES_HOME:-/tmp/rubin-tune-postgres-$(id -u)}"

find_bin() {
  local found
  found="$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)"
  [ -n "$found" ] && [ -x "$found/initdb" ] && echo "$found"
}

as_postgres() {
  # The server refuses to run as root.
  if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi
}

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

bin="$(find_bin || true)"
if [ -z "$bin" ]; then
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql; } >&2
  bin="$(find_bin)"
fi

start() {
  as_postgres "$bin/pg_ctl" -D "$home/data" -l "$home/log" -w -t 60 start \
    -o "-h 127.0.0.1 -p $1 -k '' -c fsync=off -c max_connections=100" >&2
}

cd /
if [ "${1:-start}" = halt ]; then
  as_postgres "$bin/pg_ctl" -D "$home/data" -m immediate -w stop >&2
  exit 0
fi
if [ "${1:-start}" = resume ]; then
  start "$(cat "$home/port")"
  exit 0
fi
if [ "${1:-start}" = stop ]; then
  [ -d "$home/data" ] && as_postgres "$bin/pg_ctl" -D "$home/data" -m immediate stop >&2 || true
  rm -rf "$home"
  exit 0
fi
if ! as_postgres "$bin/pg_ctl" -D "$home/data" status >/dev/null 2>&1; then
  rm -rf "$home"
  mkdir -m 700 "$home"
  [ "$(id -u)" = 0 ] && chown postgres "$home"
  as_postgres "$bin/initdb" -D "$home/data" -U rubin --auth=trust --encoding=UTF8 --no-sync >&2
  port="$(free_port)"
  start "$port"
  echo "$port" >"$home/port"
fi
echo "postgresql://rubin@127.0.0.1:$(cat "$home/port")/postgres"
