#!/bin/sh
# Backs up everything that holds memories: accepted turns (Redis) and the memories (PostgreSQL).
#
#   backup.sh DIRECTORY        → DIRECTORY/dify-memory-20260131T020000Z/
#
# Nothing has to be stopped. Redis comes first, and that matters: a turn that is stored between the two is then
# in both and is stored again after a restore, which changes nothing, while the other way round it would be in
# neither. A backup appears under its name only when it is whole. It holds private conversations in clear text:
# the files are readable by you alone; encrypt what leaves the machine.
#
# Which tools to call (each may be several words):
#   REDIS_CLI    valkey-cli       Its server is named by VALKEYCLI_AUTH or REDISCLI_AUTH (the password) and, if it is not
#                                 on this machine, by options: REDIS_CLI='valkey-cli -h redis.internal'
#                                 Where it is not installed, set MEMORY_REDIS_URL instead (as the service has it) and
#                                 leave REDIS_CLI unset: redis_snapshot.py beside this script does it then, with python3.
#   PG_DUMP      pg_dump          Its server is named by libpq's PGHOST, PGUSER, PGPASSWORD or ~/.pgpass, PGDATABASE;
#                                 at least as new as the server.
#   PG_RESTORE   pg_restore       Only reads the dump back, to see that it is whole.
#   KEEP         0                Keep that many backups and remove older ones; 0 keeps all.
# deploy/README.md has the values for the stack of compose.yaml.
set -eu

if [ $# -ne 1 ]; then
    echo "usage: backup.sh DIRECTORY" >&2
    exit 2
fi
if [ -z "${REDIS_CLI:-}" ] && [ -n "${MEMORY_REDIS_URL:-}" ]; then
    redis_cli=python3
    redis_snapshot() { python3 -I "$(dirname "$0")/redis_snapshot.py"; }
else
    redis_cli=${REDIS_CLI:-valkey-cli}
    # shellcheck disable=SC2086  # several words on purpose, here and below
    redis_snapshot() { $redis_cli --rdb -; }
fi
pg_dump=${PG_DUMP:-pg_dump}
pg_restore=${PG_RESTORE:-pg_restore}
keep=${KEEP:-0}

for tool in "$redis_cli" "$pg_dump" "$pg_restore"; do
    if ! command -v "${tool%% *}" > /dev/null; then
        echo "${tool%% *} is not installed." >&2
        exit 1
    fi
done

umask 077
mkdir -p "$1"
name=dify-memory-$(date -u +%Y%m%dT%H%M%SZ)
partial=$1/.partial-$name
if [ -e "$1/$name" ] || ! mkdir "$partial"; then
    echo "A backup of this second is there or being made." >&2
    exit 1
fi
trap 'rm -rf "$partial"' EXIT
trap 'exit 130' INT TERM HUP

# A consistent snapshot, sent over the connection as to a replica.
redis_snapshot > "$partial/redis.rdb"
# Servers that send without a file of their own end with a mark of 40 hex digits, which the client leaves on when it
# writes to its output. A snapshot itself ends with the byte ff and a checksum of 8 bytes, and so never looks like that.
if tail -c 40 "$partial/redis.rdb" | LC_ALL=C grep -aEqx '[0-9a-f]{40}'; then
    size=$(wc -c < "$partial/redis.rdb")
    head -c $((size - 40)) "$partial/redis.rdb" > "$partial/cut.rdb"
    mv "$partial/cut.rdb" "$partial/redis.rdb"
fi
begin=$(head -c 5 "$partial/redis.rdb" | tr -d '\0')
end=$(tail -c 9 "$partial/redis.rdb" | head -c 1 | od -An -tx1 | tr -d ' ')
if [ "$end" != ff ] || { [ "$begin" != REDIS ] && [ "$begin" != VALKE ]; }; then
    echo "What Redis sent is no whole snapshot." >&2
    exit 1
fi

# shellcheck disable=SC2086
$pg_dump --format=custom --no-owner --no-privileges > "$partial/postgres.dump"
# shellcheck disable=SC2086
$pg_restore --list < "$partial/postgres.dump" > /dev/null

(cd "$partial" && sha256sum redis.rdb postgres.dump > SHA256SUMS)
sync
mv "$partial" "$1/$name"
trap - EXIT

if [ "$keep" -gt 0 ]; then
    # Names sort by time; only whole backups are counted and removed.
    directory=$1
    set -- "$directory"/dify-memory-*T*Z
    while [ $# -gt "$keep" ]; do
        rm -rf "$1"
        shift
    done
    set -- "$directory"
fi
echo "$1/$name"
