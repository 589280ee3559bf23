#!/bin/sh
# SPDX-License-Identifier: MIT
# tests/abi/test_readme.sh - what README.md says can be done can be done.
#
# Proves    its example compiles without a warning as C11 against ren.h and libren.a, runs, and
#           learns; the files, folders and make targets that it names are there.
# Fails     when a call of the example changes, or a name in the page goes stale.
set -u
. tests/support/cases.sh

CC=${CC:-gcc}
staged=
for dir in build/sysroot/usr/lib/*-linux-gnu; do
    if [ -d "$dir" ]; then
        staged="-L$dir -Wl,-rpath,$(pwd)/$dir -Wl,-rpath-link,$dir"
    fi
done
libraries=$(sed -n 's/^Libs.private: //p' host_api/libren.pc.in)

# The first one is a program; the others are fragments.
awk '/^```c$/ { inside = 1; next } /^```$/ && inside { exit } inside' README.md \
    >"$scratch/example.c"
[ -s "$scratch/example.c" ]
case_is "the page has an example" $?

# shellcheck disable=SC2086
$CC -std=c11 -Wall -Wextra -Werror -Ihost_api "$scratch/example.c" build/release/libren.a $staged \
    $libraries -o "$scratch/example"
case_is "the example compiles" $?

"$scratch/example" >"$scratch/said"
case_is "the example runs" $?
awk '$1 == "loss" && $2 < 0.1 { good = 1 } END { exit !good }' "$scratch/said"
status=$?
[ "$status" -eq 0 ] || cat "$scratch/said"
case_is "the example learns" $status

grep -oE '\]\([^)#]+\)' README.md | sed -e 's/^](//' -e 's/)$//' | grep -v '^https\?:' |
    sort -u >"$scratch/links"
missing=0
while read -r path; do
    if [ ! -e "$path" ]; then
        echo "README.md links to $path, which is not there"
        missing=1
    fi
done <"$scratch/links"
case_is "every link leads somewhere" $missing

missing=0
for target in $(grep -oE '`make [a-z -]+' README.md | sed 's/`make //' | tr ' ' '\n' | sort -u); do
    if ! grep -qhE "^([a-z -]* )?$target( [a-z -]*)?:" Makefile libren/device/cuda/module.mk; then
        echo "README.md names make $target, which is not there"
        missing=1
    fi
done
case_is "every make target is there" $missing

case_finish abi/test_readme
