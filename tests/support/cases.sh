# SPDX-License-Identifier: MIT
# tests/support/cases.sh - what test scripts share: sourced by tests/*/test_*.sh.
#
# Purpose   Cases, counted, and the closing line of tests/support/test.h:
#           "<program>: N passed, N failed, N skipped".
# Use       case_is NAME STATUS   counts a case as passed when STATUS is 0
#           case_skip NAME REASON
#           case_finish PROGRAM   prints the closing line and exits 0, 1 or 77
# Scratch   $scratch is an empty folder that goes away at the end.

cases_passed=0
cases_failed=0
cases_skipped=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

case_is() {
    if [ "$2" -eq 0 ]; then
        echo "  pass $1"
        cases_passed=$((cases_passed + 1))
    else
        echo "  FAIL $1"
        cases_failed=$((cases_failed + 1))
    fi
}

case_skip() {
    echo "  skip $1: $2"
    cases_skipped=$((cases_skipped + 1))
}

case_finish() {
    echo "$1: $cases_passed passed, $cases_failed failed, $cases_skipped skipped"
    if [ "$cases_failed" -gt 0 ]; then
        exit 1
    fi
    if [ "$cases_passed" -eq 0 ]; then
        exit 77
    fi
    exit 0
}
