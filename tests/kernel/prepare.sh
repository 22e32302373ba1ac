#!/usr/bin/env bash
# Makes ready what the guest is started from, once: Debian's kernel, its modules, siw, and the part of the initial RAM
# disk that does not change. On Debian 12, as root; installs what it needs. Prints the folder that holds it all:
#
#   vmlinux      the kernel, decompressed
#   modules/     /lib/modules of that kernel, siw added
#   initrd       busybox and the modules that are loaded first, in the order of their names
#
# Everything is kept below target/kernel-guest (CARGO_TARGET_DIR is followed); delete it to start over.
set -euo pipefail
# What apt prints is read below.
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
work=$(realpath -m "${CARGO_TARGET_DIR:-$here/../../target}")/kernel-guest

say() { printf 'kernel guest: %s\n' "$*" >&2; }
die() { say "$*"; exit 126; }
[[ $(id -u) = 0 ]] || die 'must be root, to install packages and to build the guest'
mkdir -p "$work"
# Two that start at once: the second finds the work done.
exec 9>"$work/lock"
flock 9

apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o APT::Sandbox::User=root)
export DEBIAN_FRONTEND=noninteractive
lists_are_fresh=
# quietly COMMAND...: its output is shown only when it fails.
quietly() { "$@" >"$work/log" 2>&1 </dev/null || { tail -30 "$work/log" >&2; return 1; }; }
refresh_lists() {
    [[ $lists_are_fresh ]] && return
    quietly "${apt[@]}" update || die 'apt-get update failed'
    lists_are_fresh=yes
}
need_packages() {
    local missing=() package
    for package; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) = installed ]] || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    say "installing ${missing[*]}"
    refresh_lists
    quietly "${apt[@]}" install -y --no-install-recommends "${missing[@]}" || die "cannot install ${missing[*]}"
}

# The tools that each run uses, and the libraries that the tests load in the guest.
need_packages qemu-system-x86 busybox-static cpio kmod iproute2 libibverbs1 librdmacm1 ibverbs-providers

# Whatever this script does differently makes the old result useless.
stamp=made-by-$(sha256sum <"${BASH_SOURCE[0]}" | cut -c1-16)
if [[ -e $work/current/$stamp ]]; then
    readlink -f "$work/current"
    exit
fi

refresh_lists
image=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" && !seen++ { print $2 }')
[[ $image ]] || die 'no package behind linux-image-amd64: is this Debian on x86_64?'
release=${image#linux-image-}
series=$(grep -oE '^[0-9]+\.[0-9]+' <<<"$release")
version=$(apt-cache policy "$image" | awk '$1 == "Candidate:" { print $2 }')
need_packages gcc-12 make binutils xz-utils libelf1
say "preparing $image $version (a minute or two, once)"
out=$work/$release
rm -rf "$out" "$work/current"
mkdir -p "$out"/{deb,image,headers,initrd.d/{bin,modules}}

# Downloaded and unpacked, not installed: installing a kernel would change this machine's boot files.
common=linux-headers-${release%-amd64}-common
parts=("$image" "linux-headers-$release" "$common" "linux-kbuild-$series" "linux-source-$series")
(cd "$out/deb" && quietly "${apt[@]}" download "${parts[@]/%/=$version}") ||
    die 'cannot download the kernel packages'
dpkg -x "$out"/deb/linux-image-*.deb "$out/image"
for package in "$out"/deb/linux-{headers,kbuild}-*.deb; do dpkg -x "$package" "$out/headers"; done

# QEMU enters an uncompressed kernel directly (PVH); decompressing in emulation would cost seconds at every start.
compressed=$out/image/boot/vmlinuz-$release
offset=$(grep -abom1 -P '\xFD7zXZ\x00' "$compressed" | head -1 | cut -d: -f1 || true)
[[ -z $offset ]] || tail -c +$((offset + 1)) "$compressed" | xz -dc --single-stream >"$out/vmlinux" 2>/dev/null || true
if [[ $(head -c 4 "$out/vmlinux" 2>/dev/null | tail -c 3) != ELF ]]; then
    say 'the kernel is not compressed as expected; it will start more slowly'
    cp "$compressed" "$out/vmlinux"
fi

# siw comes with the source of Debian's kernel and is not built for it.
say 'building siw'
tree=$out/headers/usr/src/linux-headers-$release
sed -i "s|^include .*|include $out/headers/usr/src/$common/Makefile|" "$tree/Makefile"
siw=linux-source-$series/drivers/infiniband/sw/siw
dpkg --fsys-tarfile "$out"/deb/linux-source-*.deb | tar -xO "./usr/src/linux-source-$series.tar.xz" | xz -dc -T0 |
    tar -C "$out" -x "$siw"
quietly make -s -j"$(nproc)" -C "$tree" M="$out/$siw" CONFIG_RDMA_SIW=m modules || die 'siw cannot be built'
modules=$out/image/lib/modules/$release
mkdir "$modules/extra"
strip --strip-debug -o "$modules/extra/siw.ko" "$out/$siw/siw.ko"
depmod -b "$out/image" "$release"

# What the guest needs before it sees a root file system, and the RDMA modules: loaded from memory, which is several times
# faster than by modprobe from the host's files. Their numbers are the order.
number=10
while read -r file; do
    plain=$out/initrd.d/modules/$number-$(basename "${file%.xz}")
    if [[ $file = *.xz ]]; then xz -dc "$file" >"$plain"; else cp "$file" "$plain"; fi
    strip --strip-debug "$plain"
    ((++number))
done < <(for module in virtio_pci virtio_console 9pnet_virtio 9p overlay veth ib_uverbs rdma_ucm rdma_rxe siw; do
    modprobe -d "$out/image" -S "$release" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }')
((number > 20)) || die 'the modules cannot be found'
cp /bin/busybox "$out/initrd.d/bin/"
(cd "$out/initrd.d" && find . | sort | cpio --quiet -o -H newc) >"$out/initrd"

mv "$out/image/lib/modules" "$out/modules"
rm -rf "$out"/{deb,image,headers,initrd.d,"linux-source-$series"}
touch "$out/$stamp"
ln -s "$release" "$work/current"
readlink -f "$work/current"
