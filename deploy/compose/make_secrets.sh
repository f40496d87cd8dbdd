#!/bin/sh
# Draws every secret that is not there yet. Containers read the files as another user, so the folder is what is closed.
set -eu
cd "$(dirname "$0")"
mkdir -p secrets
chmod 700 secrets
cd secrets

draw() {
  test -s "$1" || openssl rand "$2" "$3" | tr -d '\n' >"$1"
}

draw database-owner-password -hex 24
draw database-runtime-password -hex 24
draw content-key -base64 32
draw admin-password -base64 18
at=database/lorikeet?sslmode=disable   # the inner network, which nothing else is on
printf 'postgresql://lorikeet_owner:%s@%s' "$(cat database-owner-password)" "$at" >database-owner-url
printf 'postgresql://lorikeet_runtime:%s@%s' "$(cat database-runtime-password)" "$at" >database-url
test -s admin-key || "${CONTAINERS:-docker}" run --rm --network none --read-only lorikeet-gateway:"${IMAGE_VERSION:-0.1.0}" \
  admin-key generate >admin-key
chmod 444 ./*
test -s certificate || echo "put the proxy's certificate and key, as one PEM, into deploy/compose/secrets/certificate" >&2
