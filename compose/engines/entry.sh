#!/bin/sh
# Starts an engine: entry.sh COMMAND [ARGUMENT…].  What is missing is said before gigabytes are fetched.
set -eu

refuse() {
  echo "entry.sh: $1" >&2
  exit 2
}

token="${HF_TOKEN_FILE:-}"
if [ -n "$token" ]; then
  [ -e "$token" ] || refuse "there is no $token; is HF_TOKEN_FILE in the env file the path of an existing file?"
  [ -r "$token" ] || refuse "cannot read $token; on the host: chmod a+r the file that HF_TOKEN_FILE names, or chown it to user $(id -u)"
  HF_TOKEN="$(cat "$token")" || refuse "$token cannot be read; HF_TOKEN_FILE in the env file must name a file, not a folder"
  if [ -n "$HF_TOKEN" ]; then export HF_TOKEN; else unset HF_TOKEN; fi
fi

command -v nvidia-smi >/dev/null 2>&1 \
  || refuse "no nvidia-smi in here: the NVIDIA runtime did not mount the driver; on the host: nvidia-ctk runtime configure --runtime=docker && systemctl restart docker"
nvidia-smi --list-gpus >/dev/null \
  || refuse "the driver shows no GPU; does nvidia-smi work on the host, and do the device_ids in compose.yaml exist there?"

command -v "$1" >/dev/null 2>&1 || refuse "this image has no $1; is the service's image the one of compose.yaml?"
exec "$@"
