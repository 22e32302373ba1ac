#!/usr/bin/env bash
# What one message costs both ends together, in instructions and in time: through the safe queues, through `post_raw`, and in a loop over the bare
# table of `soft0`. Needs valgrind. From the top of the repository:
#
#     verbs/examples/cost.sh [messages]
set -euo pipefail
count=${1:-20000}
examples=${CARGO_TARGET_DIR:-target}/release/examples
cargo build --quiet --release -p verbatim-softverbs --example device_cost
cargo build --quiet --release -p verbatim-verbs --example cost

# PROGRAM MODE MESSAGES
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1 | awk '/Collected/ { print $4 }'
}

# PROGRAM MODE: what a message adds to the start, and nanoseconds
cost() {
    local start all
    start=$(instructions "$1" "$2" 0)
    all=$(instructions "$1" "$2" "$count")
    printf '%6d %9s' $(((all - start) / count)) "$("$1" "$2" 1000000 | awk '{ print $(NF - 1) }')"
}

printf '%-10s %16s %16s %16s\n%-10s' '' 'safe' 'post_raw' 'bare table' ''
printf ' %6s %9s' instr. ns instr. ns instr. ns
echo
for mode in write_imm send write read; do
    printf '%-10s %s %s %s\n' "$mode" "$(cost "$examples/cost" "$mode")" "$(cost "$examples/cost" "raw_$mode")" \
        "$(cost "$examples/device_cost" "$mode")"
done
