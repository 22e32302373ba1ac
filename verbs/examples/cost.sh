#!/usr/bin/env bash
# What one message costs both ends together, in instructions and in time: through the safe queues, through `post_raw`, and in a loop over the bare
# table of `soft0`. Needs valgrind. From the top of the repository:
#
#     verbs/examples/cost.sh [messages]
set -euo pipefail
count=${1:-20000}
target=${CARGO_TARGET_DIR:-target}/release/examples/cost
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# Both examples have the same name.
for crate in softverbs verbs; do
    cargo build --quiet --release -p "verbatim-$crate" --example cost
    cp "$target" "$work/$crate"
done

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
    printf '%-10s %s %s %s\n' "$mode" "$(cost "$work/verbs" "$mode")" "$(cost "$work/verbs" "raw_$mode")" \
        "$(cost "$work/softverbs" "$mode")"
done
