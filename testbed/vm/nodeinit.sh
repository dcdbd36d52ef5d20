#!/bin/busybox sh
# The node VM's first process: brings up the disk with the node's system and hands over to its systemd.
B=/bin/busybox
die() { echo "init: $*"; $B poweroff -f; }

$B mount -t proc proc /proc
$B mount -t devtmpfs dev /dev
for module in $($B cat /modules/order); do
    $B insmod /modules/$module.ko || die "cannot load $module"
done
$B mount -t ext4 -o rw,noatime /dev/vda /newroot || die "cannot mount the node's disk"
$B mount -o move /dev /newroot/dev
$B umount /proc
exec $B switch_root /newroot /sbin/init
