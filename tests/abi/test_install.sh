#!/bin/sh
# SPDX-License-Identifier: MIT
# tests/abi/test_install.sh - an installed libren can be built against and run.
#
# Proves    `make install` into a DESTDIR puts everything where a consumer looks; a program builds
#           against it with pkg-config (shared and static) and with CMake (shared and static), and a
#           CPU runtime starts and ends in it; `make uninstall` takes away every file.
# Fails     on a file forgotten in install or uninstall, a wrong path in a template, a library that
#           Libs.private lacks, or a symbol that the shared library does not export.
set -u
. tests/support/cases.sh

dest=$scratch/dest
prefix=/usr/local
CC=${CC:-gcc}

# A make of its own: the one that runs this script has other variables.
own_make() {
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u FLAVOUR -u T make --no-print-directory "$@" \
        DESTDIR="$dest" PREFIX="$prefix" LIBDIR="$prefix/lib"
}

# A staged folder of libraries is no part of an installation, so a consumer is told of it here.
staged=
for dir in build/sysroot/usr/lib/*-linux-gnu; do
    if [ -d "$dir" ]; then
        staged="$(pwd)/$dir"
    fi
done
export LD_LIBRARY_PATH="$dest$prefix/lib${staged:+:$staged}"
export LIBRARY_PATH="$staged"

own_make install >"$scratch/install.log" 2>&1
status=$?
[ "$status" -eq 0 ] || cat "$scratch/install.log"
case_is "make install" $status

missing=0
for file in include/ren.h lib/libren.a lib/libren.so lib/libren.so.0 lib/pkgconfig/libren.pc \
    lib/cmake/libren/librenConfig.cmake lib/cmake/libren/librenConfigVersion.cmake; do
    [ -s "$dest$prefix/$file" ] || {
        echo "not installed: $file"
        missing=1
    }
done
case_is "every file is installed" $missing

! grep -rE '@[A-Z_]+@' "$dest$prefix/lib/pkgconfig" "$dest$prefix/lib/cmake"
case_is "no template variable is left" $?

if command -v pkg-config >/dev/null 2>&1; then
    export PKG_CONFIG_PATH="$dest$prefix/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$dest"
    # shellcheck disable=SC2046
    $CC tests/abi/consumer/main.c $(pkg-config --cflags --libs libren) -o "$scratch/pc_shared" &&
        "$scratch/pc_shared"
    case_is "a program built with pkg-config runs" $?
    # shellcheck disable=SC2046
    $CC tests/abi/consumer/main.c $(pkg-config --cflags libren) "$dest$prefix/lib/libren.a" \
        $(pkg-config --static --libs libren | sed 's/-lren //') -o "$scratch/pc_static" &&
        "$scratch/pc_static" && ! readelf -d "$scratch/pc_static" | grep -q libren
    case_is "a program built with pkg-config --static runs" $?
    [ "$(pkg-config --modversion libren)" = "$(sed -nE 's/^VERSION +:= (.*)/\1/p' Makefile)" ]
    case_is "pkg-config tells the version" $?
else
    case_skip "pkg-config" "no pkg-config here"
fi

if command -v cmake >/dev/null 2>&1; then
    cmake -S tests/abi/consumer -B "$scratch/cmake" -DCMAKE_C_COMPILER="${CC%% *}" \
        -DCMAKE_PREFIX_PATH="$dest$prefix" >"$scratch/cmake.log" 2>&1 &&
        cmake --build "$scratch/cmake" >>"$scratch/cmake.log" 2>&1
    status=$?
    [ "$status" -eq 0 ] || cat "$scratch/cmake.log"
    case_is "CMake finds and links libren" $status
    "$scratch/cmake/consumer_shared"
    case_is "a program built with CMake runs, shared" $?
    "$scratch/cmake/consumer_static"
    case_is "a program built with CMake runs, static" $?
    sed 's/find_package(libren 0.1/find_package(libren 9.0/' tests/abi/consumer/CMakeLists.txt \
        >"$scratch/CMakeLists.txt"
    cp tests/abi/consumer/main.c "$scratch/"
    ! cmake -S "$scratch" -B "$scratch/cmake9" -DCMAKE_C_COMPILER="${CC%% *}" \
        -DCMAKE_PREFIX_PATH="$dest$prefix" >"$scratch/cmake9.log" 2>&1 &&
        grep -q 'version' "$scratch/cmake9.log"
    case_is "CMake refuses a version that is not there" $?
else
    case_skip "CMake" "no cmake here"
fi

own_make uninstall >"$scratch/uninstall.log" 2>&1 &&
    [ -z "$(find "$dest" -type f -o -type l)" ]
case_is "make uninstall leaves no file" $?
case_finish abi/test_install
