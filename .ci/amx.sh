#!/bin/bash
# The AMX level of the CPU kernels in an emulated machine, where the tile instructions themselves run: its values against
# the oracle's, its bits against those of the AVX2 code that stands in for tiles, and paged attention. Not part of
# test-all, as nothing here can install what it takes:
#   BOCHS   a bochs executable whose model sapphire_rapids has AMX. None is packaged, and the upstream sources of 2026-08
#           are not enough: XFD (MSR 0x1c4, #NM), which Linux asks for, is missing, XSAVE keeps 8 of 16 rows of a tile and
#           swaps the two fields of a shape, and code patched after AMX is on still runs as it was before.
#   KERNEL  a vmlinuz >= 5.16 with initramfs, serial console and ACPI built in (Debian's linux-image-cloud-amd64 6.1 does)
#   BIOS    the folder with BIOS-bochs-latest and VGABIOS-lgpl-latest.bin (Bochs' own share folder)
# Also needed: apt-get install busybox-static cpio xorriso isolinux syslinux-common.
# RUN is the pattern of tests; SECONDS_AT_MOST ends the machine (7200).
set -euo pipefail
cd "$(dirname "$0")/.."

refuse() {
	echo "amx: $1; see the header of .ci/amx.sh" >&2
	exit 1
}
[ -x "${BOCHS:-}" ] || refuse "BOCHS names no executable of Bochs with AMX"
[ -f "${KERNEL:-}" ] || refuse "KERNEL names no vmlinuz"
for name in BIOS-bochs-latest VGABIOS-lgpl-latest.bin; do
	[ -n "$(find "${BIOS:-/nowhere}" -name "$name" 2> /dev/null)" ] || refuse "BIOS names no folder with $name"
done
busybox=${BUSYBOX:-$(command -v busybox || true)}
loader=/usr/lib/ISOLINUX/isolinux.bin
menu=/usr/lib/syslinux/modules/bios/ldlinux.c32
for file in "$busybox" "$loader" "$menu" "$(command -v cpio || true)" "$(command -v xorriso || true)"; do
	[ -f "$file" ] || refuse "busybox, isolinux, syslinux-common, cpio or xorriso is missing"
done

work=$(mktemp -d)
machine=
trap '[ -z "$machine" ] || kill "$machine" 2> /dev/null || true; rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,tmp,work} "$work/iso"

go test -trimpath -c -o "$root/bin/kernels.test" ./kernels/kerneltest
cp -r kernels/kerneltest/testdata "$root/work/"
cp "$busybox" "$root/bin/busybox"
for lib in $(ldd "$root/bin/kernels.test" "$busybox" 2> /dev/null | grep -oE '/[^ :]*\.so[^ ]*' | sort -u); do
	mkdir -p "$root$(dirname "$lib")"
	cp -L "$lib" "$root$lib"
done
# Bochs ends when this is written to its port.
cat > "$work/off.c" <<- 'C'
	#include <sys/io.h>
	int main(void) {
		if (iopl(3))
			return 1;
		for (const char *p = "Shutdown"; *p; p++)
			outb(*p, 0x8900);
		return 1;
	}
C
cc -O2 -static -o "$root/bin/off" "$work/off.c"
cat > "$root/init" <<- 'SH'
	#!/bin/busybox sh
	b=/bin/busybox
	$b mount -t proc proc /proc
	$b mount -t sysfs sys /sys
	$b mount -t devtmpfs dev /dev
	$b mount -t tmpfs tmp /tmp
	echo "amx: $($b grep -o 'amx[^ ]*' /proc/cpuinfo | $b sort -u | $b tr '\n' ' ')"
	cd /work
	TMPDIR=/tmp HOME=/tmp /bin/kernels.test -test.v -test.timeout 0 -test.run "$($b cat /run.txt)" < /dev/null 2>&1
	echo "amx: exit $?"
	/bin/off
SH
chmod +x "$root/init"
echo "${RUN:-^(TestAgainstReference|TestPaged)\$/^amx\$|^TestBits\$/^amx\$/^(1|2)\$}" > "$root/run.txt"
(cd "$root" && find . | cpio --quiet -o -H newc > "$work/iso/initrd")
cp "$KERNEL" "$work/iso/linux"
cp "$loader" "$menu" "$work/iso/"
cat > "$work/iso/isolinux.cfg" <<- 'C'
	default l
	label l
	kernel linux
	append initrd=initrd console=ttyS0,115200 quiet loglevel=4 lpj=100000 mitigations=off nokaslr nowatchdog tsc=reliable clocksource=tsc no_timer_check init_on_alloc=0 security=none panic=0
C
xorriso -as mkisofs -quiet -o "$work/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$work/iso" 2> /dev/null
cat > "$work/bochsrc" <<- C
	plugin_ctrl: unmapped=1
	display_library: nogui
	cpu: model=sapphire_rapids, count=1, ips=50000000, reset_on_triple_fault=0, ignore_bad_msrs=1
	memory: guest=1536, host=1536
	romimage: file=$(find "$BIOS" -name BIOS-bochs-latest | head -1)
	vgaromimage: file=$(find "$BIOS" -name VGABIOS-lgpl-latest.bin | head -1)
	boot: cdrom
	ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
	ata0-master: type=cdrom, path=$work/boot.iso, status=inserted
	com1: enabled=1, mode=file, dev=$work/serial
	log: $work/log
	panic: action=fatal
	error: action=ignore
	info: action=ignore
	clock: sync=none
C
: > "$work/serial"
timeout "${SECONDS_AT_MOST:-7200}" "$BOCHS" -q -f "$work/bochsrc" > "$work/out" 2>&1 &
machine=$!
while kill -0 "$machine" 2> /dev/null && ! grep -q 'Kernel panic' "$work/serial"; do sleep 1; done
tr -d '\r' < "$work/serial" | grep -E '^amx: |^ *--- |ops, |^(PASS|FAIL)|_test.go|bits.go|Kernel panic' || true
grep -q '^amx: .*amx_bf16.*amx_tile' "$work/serial" || refuse "the emulated processor shows no AMX to Linux"
# A skipped test, or none of the level, says that the level was not taken.
if ! tr -d '\r' < "$work/serial" | grep -q '^amx: exit 0$' || ! grep -q -- '--- PASS: .*/amx' "$work/serial" || grep -q -- '--- SKIP' "$work/serial"; then
	echo "amx: the tests did not all pass" >&2
	exit 1
fi
echo "amx: passed on emulated tile instructions"
