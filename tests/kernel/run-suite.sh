#!/usr/bin/env bash
# Builds the tests that do not depend on the device and runs them on the kernel's own Soft-RoCE, in a virtual machine.
#
#   tests/kernel/run-suite.sh [NAME]...       all, or those named
#
# On Debian 12, as root. Five minutes on two processors that do nothing else, and compiling. TEST_LIMIT is the time in
# seconds that one binary may take.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

# NAME PACKAGE TEST DEVICE PEER [ARGUMENT]...: a test binary, the devices of the two ends of its connections, and what else it
# is told.
skip() { printf -- '--skip %s ' "$@"; }
suite() {
    # Skipped: of the streams of rpc, what would take minutes here, and takes the same ways as the shorter ones. By calls: work of several segments,
    # for which nothing is built here, see verbs-lists. Refusals of what Soft-RoCE takes, addresses that it does not take, and SQE, which it does not have.
    # Not here at all: cursors with time stamps, which it does not have either, and what is about soft0.
    cat <<END
rc               verbatim-tests  kernel_rc  rxe0  rxe0
rc-two-devices   verbatim-tests  kernel_rc  rxe0  rxe1
conformance      verbatim-tests  conformance  rxe0  rxe1
verbs-messages   verbatim-verbs  messages   rxe0  rxe0
verbs-one-sided  verbatim-verbs  one_sided  rxe0  rxe0
verbs-atomics    verbatim-verbs  atomics    rxe0  rxe0
verbs-flow       verbatim-verbs  flow       rxe0  rxe0
verbs-lifetime   verbatim-verbs  lifetime   rxe0  rxe0
verbs-waiting    verbatim-verbs  waiting    rxe0  rxe0
verbs-batch      verbatim-verbs  batch      rxe0  rxe0
verbs-paths      verbatim-verbs  both_paths  rxe0  rxe0  $(skip {extended,posted_by_calls}::batches_and_scopes)
verbs-cq         verbatim-verbs  cq_control  rxe0  rxe0
verbs-datagrams  verbatim-verbs  datagrams  rxe0  rxe0
verbs-extended   verbatim-verbs  extended   rxe0  rxe0  $(skip scope::all_kinds_of_work segments_are scope::what_is_refused)
verbs-lists      verbatim-verbs  lists      rxe0  rxe0
verbs-forgotten  verbatim-verbs  forgotten  rxe0  rxe0
verbs-misuse     verbatim-verbs  misuse     rxe0  rxe0
verbs-raw        verbatim-verbs  raw        rxe0  rxe0  $(skip a_refused_chain)
verbs-regions    verbatim-verbs  regions    rxe0  rxe0  $(skip by_other_addresses)
verbs-scope      verbatim-verbs  scope      rxe0  rxe0
verbs-shared     verbatim-verbs  shared_recv  rxe0  rxe0
verbs-small      verbatim-verbs  small      rxe0  rxe0
verbs-unreliable verbatim-verbs  unreliable  rxe0  rxe0  $(skip failed_is_recovered)
pool-calls       verbatim-mempool  system_calls  rxe0  rxe0  --nocapture
rpc-echo         verbatim-rpc    echo       rxe0  rxe0
rpc-two-devices  verbatim-rpc    echo       rxe0  rxe1
rpc-lossy        verbatim-rpc    echo       rxe0  rxe1  $(skip sixty_four_megabytes every_length)
rpc-one-way      verbatim-rpc    one_way    rxe0  rxe0  --skip million
rpc-failure      verbatim-rpc    failure    rxe0  rxe0
rpc-polled       verbatim-rpc    polled     rxe0  rxe0
rpc-hostile      verbatim-rpc    hostile    rxe0  rxe0
rpc-strangers    verbatim-rpc    strangers  rxe0  rxe0
rpc-huge         verbatim-rpc    huge       rxe0  rxe0
rpc-fetch        verbatim-rpc    fetch      rxe0  rxe0
rpc-pending      verbatim-rpc    pending    rxe0  rxe0
rpc-callback     verbatim-rpc    callback   rxe0  rxe0
counts           verbatim-tests  counts     rxe0  rxe1
END
}

wanted=("$@")
want() {
    ((${#wanted[@]})) || return 0
    local name
    for name in "${wanted[@]}"; do [[ $name != "$1" ]] || return 0; done
    return 1
}
tests=() selected=()
while read -r name package test device peer arguments; do
    want "$name" || continue
    selected+=("$name $package $test $device $peer $arguments")
    [[ " ${tests[*]} " = *" $test "* ]] || tests+=(--test "$test")
done < <(suite)
((${#selected[@]})) || { echo "no such test: $*; there are:"; suite; exit 2; } >&2

echo 'building'
# Not with `-p`: what dependencies are built with depends on which packages are asked for, so all would be built anew, beside those of the tests outside.
built=$(CARGO_TERM_COLOR=never cargo test --workspace "${tests[@]}" --no-run --message-format=json-render-diagnostics)
lines=()
for line in "${selected[@]}"; do
    read -r name package test device peer arguments <<<"$line"
    # Packages can have tests of one name.
    binary=$(sed -n '/"package_id":"[^"]*#'"$package"'@/s/.*"target":{[^{}]*"name":"'"$test"'"[^{}]*}.*"executable":"\([^"]*\)".*/\1/p' <<<"$built" | tail -1)
    [[ -x $binary ]] || { echo "cargo built no test $test of $package" >&2; exit 1; }
    lines+=("$name $device $peer $binary $arguments")
done

logs=$target/kernel-guest/logs
rm -rf "$logs"
mkdir -p "$logs"
echo 'starting the guest'
status=0
tests/kernel/in-guest.sh --timeout 2200 --share "$logs" --env TEST_LIMIT --env VERBATIM_CONFORMANCE_TABLE --env VERBATIM_COUNTS_TABLE \
    -- "$PWD/tests/kernel/guest/run-tests" "$logs" "${lines[@]}" || status=$?
if ((status)); then
    echo "failed with status $status; all output is in $logs"
else
    echo "passed: ${#lines[@]} of ${#lines[@]}"
fi
exit $status
