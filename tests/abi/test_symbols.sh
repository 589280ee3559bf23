#!/bin/sh
# SPDX-License-Identifier: MIT
# tests/abi/test_symbols.sh - what the release libraries export and call.
#
# Proves    libren.so.0 exports the functions of ren.h and nothing else; no object of ours calls
#           abort, exit, printf, getenv or their kin, or keeps writable variables. The rules and the
#           proof that each can fail are in tests/tools/check-symbols.
# Fails     on a function that is declared and not written, an internal name that leaks, or a debug
#           print.
set -u
. tests/support/cases.sh

sh tests/tools/check-symbols --self-test
case_is "planted breaches are found" $?
sh tests/tools/check-symbols build/release
case_is "the release libraries keep the rules" $?
case_finish abi/test_symbols
