#!/usr/bin/env bash
# Runs one command on Debian's own kernel with RDMA devices, in a virtual machine that lives as long as the command.
#
#   tests/kernel/in-guest.sh [OPTION]... [--] COMMAND [ARGUMENT]...
#
#   --timeout SECONDS    the guest is ended after this time (default 300)
#   --env NAME[=VALUE]   hands over a variable; without a value, this shell's. Nothing else of the environment is.
#   --share FOLDER       what the guest writes here stays; all else it writes is lost
#   --cpus N             (default 2)
#   --memory SIZE        (default 2G)
#   --console FILE       keeps the guest's kernel log
#   --verbose            shows all of the guest's kernel log at the end
#
# COMMAND runs as root in this folder, with this machine's files as they are and standard input empty. Its output, both
# streams as one, and its exit status are this script's. There are rxe0 and rxe1 (RoCE) and siw0 and siw1 (iWARP), see
# guest/job. Exit statuses of this script's own: 124 out of time, 125 the guest died or found no devices, 126 no guest.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

say() { printf 'kernel guest: %s\n' "$*" >&2; }
die() { say "$*"; exit 126; }

limit=300 cpus=2 memory=2G console='' verbose=''
variables=() shares=()
while (($#)); do
    case $1 in
        --timeout) limit=$2; shift 2;;
        --env) variables+=("$2"); shift 2;;
        --share) shares+=("$(cd "$2" && pwd -P)") || die "no folder $2"; shift 2;;
        --cpus) cpus=$2; shift 2;;
        --memory) memory=$2; shift 2;;
        --console) console=$2; shift 2;;
        --verbose) verbose=yes; shift;;
        --) shift; break;;
        -*) die "no such option: $1 (see the head of ${BASH_SOURCE[0]})";;
        *) break;;
    esac
done
(($#)) || die "no command given (see the head of ${BASH_SOURCE[0]})"

base=$("$here/prepare.sh")
run=$(mktemp -d "$(dirname "$base")/run.XXXXXX")
trap 'rm -rf "$run"' EXIT

# The job: scripts, command and settings, in a second archive that the kernel unpacks after the first.
mkdir "$run/job"
cp "$here"/guest/{functions,pid1,job} "$run/job/"
cp "$here/guest/init" "$run/init"
chmod 755 "$run/init"
printf 'modules=%q shares=%d\n' "$base/modules" ${#shares[@]} >"$run/job/conf"
{
    for variable in "${variables[@]}"; do
        name=${variable%%=*}
        [[ $name =~ ^[A-Za-z_][A-Za-z_0-9]*$ ]] || die "not the name of a variable: $name"
        if [[ $variable = *=* ]]; then value=${variable#*=}; else value=${!name-}; fi
        printf 'export %s=%q\n' "$name" "$value"
    done
    printf 'folder=%q\ncommand=(' "$PWD"
    printf ' %q' "$@"
    echo ' )'
} >"$run/job/environment"

devices=(-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap
    -device virtio-9p-pci,fsdev=root,mount_tag=root)
for ((i = 0; i < ${#shares[@]}; i++)); do
    printf '%s' "${shares[i]}" >"$run/job/share$i"
    devices+=(-fsdev "local,id=share$i,path=${shares[i]//,/,,},security_model=none,multidevs=remap"
        -device "virtio-9p-pci,fsdev=share$i,mount_tag=share$i")
done
cp "$base/initrd" "$run/initrd"
(cd "$run" && find init job | cpio --quiet -o -H newc) >>"$run/initrd"

parameters=(console=ttyS0 8250.nr_uarts=1 reboot=t net.ifnames=0
    # Ends, with -no-reboot, when it panics, and panics on what it would limp on after.
    panic=-1 oops=panic
    # Starts faster in emulation, and stays predictable.
    mitigations=off nokaslr audit=0 apparmor=0 cryptomgr.notests no_timer_check random.trust_cpu=on rcupdate.rcu_expedited=1)
[[ $verbose ]] || parameters+=(quiet loglevel=3)

# Output comes through a FIFO that this shell holds open, so that its reader ends exactly when all of it was read and QEMU
# has ended. (QEMU's `stdio` stops passing output on once its standard input is at its end.)
mkfifo "$run/output"
exec 3<>"$run/output" 4<"$run/output"
cat <&4 3>&- 4<&- &
reader=$!
exec 4<&-
: >"$run/status"
: >"$run/console"
timeout --kill-after=5 "$limit" qemu-system-x86_64 \
    -accel tcg,thread=multi,tb-size=512 -cpu max -smp "$cpus" -m "$memory" \
    -machine pc -nodefaults -no-user-config -no-reboot -display none \
    -kernel "$base/vmlinux" -initrd "$run/initrd" -append "${parameters[*]}" \
    -serial "file:$run/console" -device virtio-serial-pci \
    -chardev "file,id=output,path=$run/output" -device virtserialport,chardev=output,nr=1 \
    -chardev "file,id=status,path=$run/status" -device virtserialport,chardev=status,nr=2 \
    "${devices[@]}" </dev/null 3>&- &
machine=$!
stopped=''
trap 'stopped=yes; kill "$machine" 2>/dev/null || true' INT TERM HUP
ended=0
wait "$machine" || ended=$?
# A trapped signal ends `wait` early.
[[ -z $stopped ]] || wait "$machine" || true
exec 3>&-
wait "$reader" || true
[[ -z $stopped ]] || { say 'stopped by a signal'; exit 143; }

[[ -z $console ]] || cp "$run/console" "$console"
if [[ $verbose ]]; then cat "$run/console" >&2; fi
complaints='BUG:|WARNING:|Oops|general protection|Kernel panic|blocked for more than'
if grep -aqE "$complaints" "$run/console"; then
    say 'the kernel complained:'
    grep -aE -A15 "$complaints" "$run/console" | head -80 >&2
fi
status=$(sed -n 's/^status=\([0-9][0-9]*\)$/\1/p' "$run/status")
[[ -z $status ]] || exit "$status"
if ((ended == 124 || ended == 137)); then
    say "ended after $limit seconds, the time limit"
    exit 124
fi
say "the guest ended without a status (QEMU's: $ended); the end of its log:"
tail -30 "$run/console" >&2
exit 125
