#!/usr/bin/env bash
# Creates or joins the workspace, creates the target of the Ray cluster on this machine, and serves.
# It can be run repeatedly. Variables: RAYJOBS_STORE (postgresql://…), RAYJOBS_BLOBS
# (s3://BUCKET/PREFIX), RAYJOBS_S3_ENDPOINT, RAYJOBS_RAY_ADDRESS, RAYJOBS_TOKEN_FILE; with a
# certificate RAYJOBS_TLS_CERT and RAYJOBS_TLS_KEY.
set -euo pipefail
export RAYJOBS_WORKSPACE=${RAYJOBS_WORKSPACE:-$HOME/team}

wait_for() {
    for _ in $(seq 60); do
        timeout 2 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null && return 0
        sleep 2
    done
    echo "start-server: nothing answers at $1:$2" >&2
    return 1
}

wait_for "${RAYJOBS_RAY_ADDRESS%%:*}" "${RAYJOBS_RAY_ADDRESS##*:}"
if [[ ! -e $RAYJOBS_WORKSPACE ]]; then
    rayjobs workspace create "$RAYJOBS_WORKSPACE" --store "$RAYJOBS_STORE" \
        --blobs "$RAYJOBS_BLOBS" --make-bucket --endpoint-url "$RAYJOBS_S3_ENDPOINT"
fi
# The target uses the nodes that run. Only for a cluster of `ray up` that starts nodes on demand, add
# --cluster with its file.
if ! rayjobs target show cluster >/dev/null 2>&1; then
    rayjobs target create cluster --address "$RAYJOBS_RAY_ADDRESS" --token-file "$RAYJOBS_TOKEN_FILE"
fi
rayjobs target use cluster
for name in PGPASSWORD AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY; do
    rayjobs target secret set "$name" --target cluster # the value comes from this shell
done
rayjobs target start cluster
tls=()
if [[ -n ${RAYJOBS_TLS_CERT:-} ]]; then
    tls=(--tls-cert "$RAYJOBS_TLS_CERT" --tls-key "$RAYJOBS_TLS_KEY")
fi
exec rayjobs serve --host 0.0.0.0 --port 8400 "${tls[@]}"
