#!/bin/sh
# Brings back what backup.sh has saved. It may be run again: each time the result is the backup.
#
#   restore.sh DIRECTORY/dify-memory-20260131T020000Z
#
# In this order:
#   1. Stop the API, the workers, Hindsight and Redis. PostgreSQL runs, with an empty or an old database.
#   2. restore.sh BACKUP: first PostgreSQL, in one transaction, then the files of Redis.
#   3. Empty the Redis of cached answers, if it is one of its own: it may hold answers newer than the backup.
#   4. Start Redis, Hindsight, the workers, the API. Turns that were waiting are stored now; those that Hindsight
#      has already are recognised.
#   5. What was forgotten after the backup was made is there again: forget it once more.
#
# Which tools to call (each may be several words):
#   PG_RESTORE     pg_restore     Server and database: libpq's PGHOST, PGUSER, PGPASSWORD or ~/.pgpass, PGDATABASE.
#   PSQL           psql           The same; asks who else is connected.
#   REDIS_CLI      valkey-cli     Only asks whether Redis is stopped. If it is unset and MEMORY_REDIS_URL is set,
#                                 redis_snapshot.py beside this script asks, with python3.
#   REDIS_SHELL    sh             A shell that sees the data folder of Redis, as the user that Redis runs as or as root.
#   REDIS_DATA     /var/lib/valkey  That folder.
set -eu

if [ $# -ne 1 ]; then
    echo "usage: restore.sh BACKUP" >&2
    exit 2
fi
pg_restore=${PG_RESTORE:-pg_restore}
psql=${PSQL:-psql}
if [ -z "${REDIS_CLI:-}" ] && [ -n "${MEMORY_REDIS_URL:-}" ]; then
    redis_cli=python3
    # Stopped is what it says with 3; whatever else is wrong, it may be running.
    redis_is_stopped() {
        status=0
        python3 -I "$(dirname "$0")/redis_snapshot.py" ping 2> /dev/null || status=$?
        [ "$status" = 3 ]
    }
else
    redis_cli=${REDIS_CLI:-valkey-cli}
    # Any reply, be it that a password is wanted, comes from a server.
    # shellcheck disable=SC2086  # several words on purpose, here and below
    redis_is_stopped() { ! $redis_cli ping 2> /dev/null | grep -q .; }
fi
redis_shell=${REDIS_SHELL:-sh}
redis_data=${REDIS_DATA:-/var/lib/valkey}

for tool in "$pg_restore" "$psql" "$redis_cli" "$redis_shell"; do
    if ! command -v "${tool%% *}" > /dev/null; then
        echo "${tool%% *} is not installed." >&2
        exit 1
    fi
done
(cd "$1" && sha256sum --quiet --check SHA256SUMS)

# A server that runs would write its own files over ours.
if ! redis_is_stopped; then
    echo "Redis is running: stop it first." >&2
    exit 1
fi
# shellcheck disable=SC2086
others=$($psql --no-psqlrc --tuples-only --no-align --command \
    'select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()' < /dev/null)
if [ "$others" != 0 ]; then
    echo "Somebody is connected to the database: stop Hindsight first." >&2
    exit 1
fi

# shellcheck disable=SC2086
$pg_restore --clean --if-exists --no-owner --no-privileges --exit-on-error --single-transaction \
    --dbname="${PGDATABASE:-hindsight}" < "$1/postgres.dump"

# With AOF on, Redis does not read dump.rdb. The snapshot becomes the base of a new AOF instead; the folder that
# was there stays aside, under the time of this restore, until you remove it.
# shellcheck disable=SC2016  # for the other shell
install='
    set -eu
    cd "$1"
    umask 077
    rm -rf appendonlydir.new
    mkdir appendonlydir.new
    cat > appendonlydir.new/appendonly.aof.1.base.rdb
    echo "file appendonly.aof.1.base.rdb seq 1 type b" > appendonlydir.new/appendonly.aof.manifest
    if [ "$(id -u)" = 0 ]; then
        chown -R "$(stat -c %u:%g .)" appendonlydir.new
    fi
    sync
    if [ -e appendonlydir ]; then
        mv appendonlydir "appendonlydir.before-$2"
    fi
    mv appendonlydir.new appendonlydir
'
# shellcheck disable=SC2086
$redis_shell -c "$install" sh "$redis_data" "$(date -u +%Y%m%dT%H%M%SZ)-$$" < "$1/redis.rdb"
echo "Restored. Empty the cache, then start Redis, Hindsight, the workers and the API."
