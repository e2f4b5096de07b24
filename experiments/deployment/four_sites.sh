#!/usr/bin/env bash
# Four hospitals on one machine as if they were four: one SuperLink with TLS, and one SuperNode for each hospital with a
# key, a file and a folder of its own. Makes the certificates, registers the keys, runs, and ends what it started.
#
#   experiments/deployment/four_sites.sh DATA [OUT] [KEY=VALUE ...]
#
# DATA holds the four processed.*.data files; OUT (default runs/four_sites) gets the run in OUT/run and each site's
# files in OUT/sites/NAME. A run that stands in OUT/run is gone on with.
set -euo pipefail

die() { echo "four_sites.sh: $*" >&2; exit 1; }

[ $# -ge 1 ] || die "give the folder of the four processed.*.data files"
for command in flower-superlink flower-supernode flwr python; do
  command -v "$command" >/dev/null || die "$command is not on the PATH: pip install 'pyrofl[flower]', and activate it"
done
for command in openssl ssh-keygen curl setsid flock; do
  command -v "$command" >/dev/null || die "$command is not on the PATH: it comes with the system"
done
data=$(realpath -m "$1")
out=$(realpath -m "${2:-runs/four_sites}")
overrides="${*:3}"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sites=(cleveland hungarian switzerland va)
certificates=$out/certificates log=$out/log
free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=${PORT:-$(free_port)}
started=()
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 OMP_NUM_THREADS=1

finish() { # each was begun as a group of its own: what it started ends with it
  for process in "${started[@]}"; do kill -- "-$process" 2>/dev/null || true; done
  for process in "${started[@]}"; do wait "$process" 2>/dev/null || true; done
}
trap finish EXIT
trap 'exit 143' INT TERM

begin() { # begin NAME COMMAND ...: in the background, its output in OUT/log/NAME
  setsid "${@:2}" >"$log/$1" 2>&1 9>&- &
  started+=($!)
}
ended() { # ended NAME WHAT: what did not start says why
  cat "$log/$1" >&2
  die "$2 did not start: see above"
}

for name in "${sites[@]}"; do
  [ -f "$data/processed.$name.data" ] || die "$data/processed.$name.data is missing: each hospital has a file of its own"
done
mkdir -p "$certificates" "$log" "$out/home"
exec 9>"$out/lock"
flock --nonblock 9 || die "another run is at work in $out: wait for it, or give another folder"
for name in "${sites[@]}"; do
  mkdir -p "$out/sites/$name"
  cp "$data/processed.$name.data" "$out/sites/$name/"
done

# ---- once, by whoever runs the server: an authority, and a certificate of the server's address signed by it
if [ ! -e "$certificates/server.pem" ]; then
  curve=(-newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes)
  openssl req -x509 "${curve[@]}" -days 30 -subj "/CN=four sites" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout "$certificates/authority.key" -out "$certificates/authority.pem" 2>/dev/null
  openssl req "${curve[@]}" -subj "/CN=localhost" -keyout "$certificates/server.key" \
    -out "$certificates/server.csr" 2>/dev/null
  openssl x509 -req -in "$certificates/server.csr" -CA "$certificates/authority.pem" -CAkey "$certificates/authority.key" \
    -CAcreateserial -days 30 -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1") \
    -out "$certificates/server.pem" 2>/dev/null
fi
cat >"$out/home/config.toml" <<END
[superlink]
default = "four"
[superlink.four]
address = "127.0.0.1:$port"
root-certificates = "$certificates/authority.pem"
END

# ---- the server
begin superlink env FLWR_HOME="$out/home" flower-superlink --host 127.0.0.1 --port "$port" \
  --ssl-certfile "$certificates/server.pem" --ssl-keyfile "$certificates/server.key" \
  --ssl-ca-certfile "$certificates/authority.pem" --enable-supernode-auth --disable-runtime-dependency-installation
healthy() { curl --silent --fail --max-time 2 --cacert "$certificates/authority.pem" "https://127.0.0.1:$port/health"; }
until healthy >/dev/null; do
  kill -0 "${started[0]}" 2>/dev/null || ended superlink "the SuperLink on port $port"
  sleep 0.5
done

# ---- each site: a key, whose public half goes to the server; then a SuperNode with its file and its folder
for name in "${sites[@]}"; do
  site=$out/sites/$name
  [ -e "$site/key" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "$name" -f "$site/key"
  FLWR_HOME="$out/home" flwr supernode register "$site/key.pub" --name "$name" >>"$log/register" 2>&1
  begin "$name" env FLWR_HOME="$site/home" flower-supernode --superlink "127.0.0.1:$port" \
    --root-certificates "$certificates/authority.pem" --auth-supernode-private-key "$site/key" \
    --host 127.0.0.1 --port "$(free_port)" \
    --node-config "site=\"$name\" data=\"$site/processed.$name.data\" state=\"$site/state\""
done

# ---- the run
FLWR_HOME="$out/home" flwr run . --stream --run-config \
  "config=\"experiments/deployment/four_sites.toml\" out=\"$out/run\" set=\"$overrides\"" >"$log/run" 2>&1 9>&- &
run=$!
tail --lines=+1 --follow --pid=$run "$log/run" 9>&- &
shown=$!
trap 'kill $run 2>/dev/null; exit 143' INT TERM
status=0
wait $run || status=$?
wait $shown || true
[ $status = 0 ] || die "flwr run failed: see above"
grep -q "^done: " "$log/run" || die "the run did not come to its end: see above, and the sites' own words in $log"
