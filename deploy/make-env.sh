#!/bin/sh
# Writes deploy/.env with new secrets for compose.yaml. To a file that is there it adds only a secret that it lacks
# because it was made by an older version. It says what compose.yaml took from there, or from the shell, and no more does.
set -eu
file=${1:-"$(dirname "$0")/.env"}

secret() {
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}

# warn WHERE NAMES, one a line
warn() {
    moved=$(printf '%s\n' "$2" | paste -s -d , - | sed 's/,/, /g')
    if [ -n "$moved" ]; then
        echo "No longer read from $1: $moved. Move it to memory.env (CACHE_REDIS_URL as MEMORY_CACHE_REDIS_URL)." >&2
    fi
}

elsewhere='MEMORY_LLM_[A-Z_]+|CACHE_REDIS_URL'
blank='[[:space:]]*'
warn "the shell" "$(env | sed -nE "s/^($elsewhere)=.+/\1/p")"

umask 077
if [ -e "$file" ]; then
    if grep -q '^TOKEN_KEYS=' "$file"; then
        echo "$file is there already; nothing was changed." >&2
    else
        printf '\n# Signs user tokens and the links to a person'\''s page /me.\nTOKEN_KEYS=k1:%s\n' "$(secret)" >> "$file"
        echo "TOKEN_KEYS was added to $file." >&2
    fi
    warn "$file" "$(sed -nE "s/^$blank(export[[:space:]]+)?($elsewhere)$blank[=:]$blank[^[:space:]].*/\2/p" "$file")"
    exit 0
fi

partial="$file.partial"
cat > "$partial" <<EOF
# Secrets of this installation, made by make-env.sh. Letters and digits only: some become part of URLs.

# The key that Dify sends.
MEMORY_API_KEY=dm_$(secret)
REDIS_PASSWORD=$(secret)
POSTGRES_PASSWORD=$(secret)
# Between the service and Hindsight, both ways, and between Hindsight and the embeddings.
HINDSIGHT_KEY=$(secret)
WEBHOOK_SECRET=$(secret)
EMBEDDINGS_KEY=$(secret)
# Signs user tokens and the links to a person's page /me. For a new one put it first: k2:NEW,k1:OLD.
TOKEN_KEYS=k1:$(secret)

# Where the API can be reached on this machine; 0.0.0.0:8000 lets others in, without TLS.
#PUBLISH=127.0.0.1:8000
# The URL under which Dify reaches it, for the OpenAPI document.
#MEMORY_PUBLIC_URL=http://memory-api:8000
# The URL under which people reach it, for the links to their page /me.
#MEMORY_ME_URL=http://127.0.0.1:8000
# Together with Dify on this machine: both files, and Dify's network.
#COMPOSE_FILE=compose.yaml:compose.dify.yaml
#DIFY_NETWORK=docker_default
# Cached answers on a Redis of their own. Its URL goes into memory.env, as it stands here:
# MEMORY_CACHE_REDIS_URL=redis://:\${REDIS_PASSWORD}@memory-cache:6379/0
#COMPOSE_PROFILES=cache
# Redis of accepted turns: the memory it may fill, and, well above that, the container's limit.
#REDIS_MAXMEMORY=640mb
#REDIS_MEMORY=1G

# The language model that Hindsight keeps its observations up to date with. The one that extracts memories
# (MEMORY_LLM_MODEL) goes into memory.env.
#HINDSIGHT_LLM_PROVIDER=openai
#HINDSIGHT_LLM_MODEL=gpt-4o-mini
#HINDSIGHT_LLM_API_KEY=
#HINDSIGHT_LLM_BASE_URL=
EOF
mv "$partial" "$file"
echo "Secrets are in $file."
