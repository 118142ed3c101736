#!/usr/bin/env bash
# Says what it runs, and how long that took unless it was nothing. usage: timed.sh WHAT COMMAND...
set -euo pipefail
what=$1
shift
start=$SECONDS
echo "== $what"
"$@"
seconds=$((SECONDS - start))
[ "$seconds" -lt 3 ] || echo "   $what: $seconds s"
