#!/usr/bin/env bash
# Tests of the guest itself: exit statuses, arguments, what is shared and what is not, hangs and panics. About a minute.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
base=$("$here/prepare.sh")
scratch=$(mktemp -d "$(dirname "$base")/self-test.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
failed=0

# expect NAME STATUS PATTERN ARGUMENT...: what in-guest.sh with these arguments returns and prints (PATTERN may be empty).
expect() {
    local name=$1 want=$2 pattern=$3 status=0
    shift 3
    "$here/in-guest.sh" "$@" >"$scratch/output" 2>&1 || status=$?
    if ((status == want)) && grep -qE -- "$pattern" "$scratch/output"; then
        printf '  %-44s ok\n' "$name"
        return
    fi
    printf '  %-44s FAILED: status %d, not %d, or no "%s" in\n' "$name" $status "$want" "$pattern"
    sed 's/^/    /' "$scratch/output"
    failed=1
}

mkdir "$scratch/shared folder"
touch "$scratch/untouched"
expect 'arguments, output, exit status' 7 '^<a  b> <\$HOME> <> <">$' \
    -- bash -c 'printf "<%s> <%s> <%s> <%s>\n" "$@"; exit 7' - 'a  b' '$HOME' '' '"'
expect 'four devices' 0 '^4$' -- bash -c 'rdma link | grep -c "state ACTIVE"'
GIVEN='given here' HIDDEN=hidden expect 'variables, and only those named' 0 '^given here, and here: none$' \
    --env GIVEN --env 'OTHER=, and here:' -- bash -c 'echo "$GIVEN$OTHER ${HIDDEN:-none}"'
expect 'files of the host, and a shared folder' 0 '^done$' --share "$scratch/shared folder" \
    -- bash -c "rm '$scratch/untouched' && echo written >'$scratch/shared folder/file' && echo done"
[[ -e $scratch/untouched && $(<"$scratch/shared folder/file") = written ]] ||
    { echo '  what the guest wrote is not where it should be'; failed=1; }
expect 'all of much output' 0 '^1000000$' -- seq 1000000
[[ $(wc -l <"$scratch/output") = 1000000 ]] || { echo '  output was lost'; failed=1; }
expect 'a command that does not end' 124 '^begun' --timeout 40 -- bash -c 'echo begun; sleep 1000'
expect 'a kernel that panics' 125 'sysrq triggered crash|Kernel panic' \
    -- bash -c 'echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 1000'
exit $failed
