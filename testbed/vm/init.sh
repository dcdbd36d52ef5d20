#!/bin/busybox sh
# The kernel VM's first process. Mounts the host's files read-only, makes the places that must be writable, sets up
# network, swap and cgroups, and hands over to testbed/vm/guest.py. /boot.conf comes from testbed/vm/kernelvm.py.
B=/bin/busybox
die() { echo "init: $*"; $B poweroff -f; }

$B mount -t proc proc /proc
$B mount -t devtmpfs dev /dev
for module in $($B cat /modules/order); do
    $B insmod /modules/$module.ko || die "cannot load $module"
done
. /boot.conf

$B ip link set lo up
$B ip link set eth0 up || die "no network device"
$B ip addr add 10.0.2.15/24 dev eth0
$B ip route add default via 10.0.2.2

# One mount of the host's files, bound twice: the second shows what the writable folders hide in the first.
NINE=trans=virtio,version=9p2000.L,msize=512000
$B mount -t 9p -o $NINE,ro,cache=loose,access=any host /host || die "cannot mount the host's files"
$B mount -o bind /host /newroot
for folder in proc sys dev tmp run var/tmp; do
    [ -d /newroot/$folder ] || die "the host has no folder /$folder"
done
$B mount -o move /proc /newroot/proc
$B mount -o move /dev /newroot/dev
$B mount -t sysfs sys /newroot/sys
for folder in tmp run var/tmp; do
    $B mount -t tmpfs -o mode=1777,size=128m tmpfs /newroot/$folder
done
for folder in $BINDS; do
    $B mkdir -p /newroot$folder && $B mount -o bind /host$folder /newroot$folder || die "cannot show $folder"
done
$B mkdir -p /newroot$SHARED
$B mount -t 9p -o $NINE,rw,cache=none,access=any shared /newroot$SHARED || die "cannot mount the shared folder"
$B mkdir -p /newroot/dev/pts /newroot/dev/shm
$B mount -t devpts devpts /newroot/dev/pts
$B mount -t tmpfs -o mode=1777 tmpfs /newroot/dev/shm
$B mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /newroot/sys/fs/cgroup || die "no cgroup v2"
echo "+cpu +io +memory +pids" > /newroot/sys/fs/cgroup/cgroup.subtree_control || die "no memory controller"

if [ -b /newroot/dev/vda ]; then
    $B mkswap /newroot/dev/vda > /newroot/dev/null && $B swapon /newroot/dev/vda || die "no swap"
fi
$B hostname kernel-vm

# This shell stays: as process 1 it has to collect orphans, which Python's subprocess would take for its own.
$B mkdir /newroot/run/testbed
$B cp $B /boot.conf /newroot/run/testbed/
$B chmod 600 /newroot/run/testbed/boot.conf
cat_main() {
    echo '. /run/testbed/boot.conf'
    echo 'export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8'
    echo '"$PYTHON" -I -S "$GUEST" "$HOST" "$PORT" "$SECRET"'
    echo '/run/testbed/busybox poweroff -f'
}
cat_main > /newroot/run/testbed/main
exec $B switch_root /newroot /run/testbed/busybox sh /run/testbed/main
