#!/bin/sh
# SPDX-License-Identifier: MIT
# tests/gpu/stage.sh - the libraries that a machine without a package registry lacks.
#
# Usage     stage.sh pack      fetch the packages into build/stage (needs apt and a registry)
#           stage.sh unpack    unpack build/stage into build/sysroot, which the Makefile prefers
# Packed    because oneDNN alone takes 40 MB unpacked; packed, all of it is under 8 MB.
# Machine   the packages of this Debian release run on any later one and on Ubuntu of its age or
#           later: they need only the C and C++ libraries.
set -eu

packages='libck-dev libck0 libcunit1 libcunit1-dev libdnnl-dev libdnnl[0-9] libyajl-dev libyajl2
          libgomp1 ocl-icd-libopencl1 libconcurrentqueue-dev'

case ${1:-} in
pack)
    mkdir -p build/stage
    cd build/stage
    rm -f ./*.deb
    names=
    for package in $packages; do
        case $package in
        *'['*)
            package=$(apt-cache depends libdnnl-dev |
                sed -n 's/.*Depends: \(libdnnl[0-9.]*\)$/\1/p')
            ;;
        esac
        names="$names $package"
    done
    # shellcheck disable=SC2086
    apt-get -o APT::Sandbox::User=root download $names
    du -sh .
    ;;
unpack)
    if [ -z "$(ls build/stage/*.deb 2>/dev/null)" ]; then
        echo "stage.sh: build/stage holds no packages: run \`make stage\` where there is a registry"
        exit 1
    fi
    mkdir -p build/sysroot
    for package in build/stage/*.deb; do
        dpkg -x "$package" build/sysroot
    done
    echo "stage.sh: $(ls build/stage/*.deb | wc -l) packages unpacked into build/sysroot"
    ;;
*)
    echo "usage: stage.sh pack|unpack" >&2
    exit 2
    ;;
esac
