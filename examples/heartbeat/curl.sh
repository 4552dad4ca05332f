#!/bin/sh
# The heartbeat agent on HTTP alone: every tick, the busiest processes of this
# machine as one batch of events in heartbeat.received. It needs a POSIX shell,
# awk, sort, curl and a ps that knows pcpu and rss (Debian: packages curl, procps).
#
#   curl.sh [http://HOST:PORT [SECONDS]]
#
# The hub's HTTP API is at the address, or at $EVENTHUB_URL, or at
# http://127.0.0.1:8081; $EVENTHUB_TOKEN, where set, is presented to it; SECONDS
# is the time between ticks, 1 if not given.
#
# A tick that fails is reported on standard error and left out: the next one says
# more than it did. Only a hub that denies us ends the agent, with status 4; a
# missing tool does with 1, a wrong call with 2.
#
# Unlike the Go agent's, the CPU of a process is what ps says: on Linux the share
# of its whole life, not of the last tick.
set -u

TOP=20

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# heartbeats SID: what ps says, as NDJSON. Names may hold anything: they come as
# UTF-8 where the system has the locale and as ASCII elsewhere, and what is not
# even that is replaced here, byte by byte, by "?".
heartbeats() {
	processes=$(LC_ALL=C.UTF-8 ps -e -o pid= -o pcpu= -o rss= -o comm=) || return 1
	printf '%s\n' "$processes" | LC_ALL=C sort -k2,2nr -k3,3nr -k1,1n |
		HOST=$(uname -n) SID=$1 LC_ALL=C awk -v top="$TOP" '
		BEGIN {
			for (i = 1; i < 32; i++) escaped[sprintf("%c", i)] = sprintf("\\u%04x", i)
			escaped["\""] = "\\\""; escaped["\\"] = "\\\\"
			plain = "^[] !#-[^-~]+" # ASCII but control characters, quote and backslash
			utf8 = "^([\302-\337][\200-\277]|\340[\240-\277][\200-\277]|[\341-\354\356\357][\200-\277][\200-\277]" \
				"|\355[\200-\237][\200-\277]|\360[\220-\277][\200-\277][\200-\277]" \
				"|[\361-\363][\200-\277][\200-\277][\200-\277]|\364[\200-\217][\200-\277][\200-\277])"
			host = json(part(ENVIRON["HOST"])); sid = json(ENVIRON["SID"])
		}
		# json returns s as the inside of a JSON string.
		function json(s,   out, c) {
			while (s != "") {
				if (match(s, plain) || match(s, utf8)) { out = out substr(s, 1, RLENGTH); s = substr(s, RLENGTH + 1); continue }
				c = substr(s, 1, 1); s = substr(s, 2)
				out = out ((c in escaped) ? escaped[c] : "?")
			}
			return out
		}
		# part makes any name fit for a part of a key.
		function part(s) { return s == "" ? "unknown" : substr(s, 1, 255) }
		$1 ~ /^[0-9]+$/ && $2 ~ /^[0-9]+([.][0-9]+)?$/ && $3 ~ /^[0-9]+$/ && n < top {
			n++
			name = $0
			sub(/^ *[0-9]+ +[0-9.]+ +[0-9]+ ?/, "", name)
			sub(/ <defunct>$/, "", name)
			name = json(part(name))
			printf "{\"topic\":\"heartbeat.received\",\"key\":\"%s:%s:%d\",\"sid\":\"%s\",\"payload\":", host, name, $1, sid
			printf "{\"pid\":%d,\"name\":\"%s\",\"host\":\"%s\",\"cpu_pct\":%.2f,\"mem_mb\":%.2f,\"sid\":\"%s\"}}\n", $1, name, host, $2, $3 / 1024, sid
		}'
}

# publish BODY: one batch, committed together or not at all. The token goes by
# standard input, for arguments can be seen by everybody on this machine.
publish() {
	answer=$(printf '%s\n' "$authorization" | curl --silent --show-error --max-time 10 --config - \
		--header 'Content-Type: application/x-ndjson' --data-binary "$1" --write-out '\n%{http_code}' \
		"$url/v1/publish" 2>&1) || { say "no answer from $url: ${answer%%
*}"; return 1; }
	status=${answer##*
}
	[ "$status" = 200 ] && return
	say "$url answered $status: ${answer%
*}"
	case $status in 401 | 403) exit 4 ;; esac
	return 1
}

url=${1:-${EVENTHUB_URL:-http://127.0.0.1:8081}}
url=${url%/}
interval=${2:-1}
[ $# -le 2 ] || { say 'usage: curl.sh [http://HOST:PORT [SECONDS]]'; exit 2; }
case $url in
http://?* | https://?*) ;;
*) say "the address $url is not http://HOST:PORT"; exit 2 ;;
esac
case $interval in
*[!0-9.]* | *.*.* | . | '') say "SECONDS is \"$interval\", not a number"; exit 2 ;;
esac
for tool in ps curl awk sort; do
	command -v "$tool" >/dev/null || { say "$tool is not to be found"; exit 1; }
done
authorization=
if [ -n "${EVENTHUB_TOKEN:-}" ]; then
	authorization="header = \"Authorization: Bearer $(printf '%s' "$EVENTHUB_TOKEN" | sed 's/[\\"]/\\&/g')\""
fi
sid=curl-$(date +%s)-$$

while :; do
	if body=$(heartbeats "$sid"); then
		[ -z "$body" ] || publish "$body"
	else
		say 'ps failed'
	fi
	sleep "$interval" || exit
done
